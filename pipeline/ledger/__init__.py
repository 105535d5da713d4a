"""The record of everything: journal, DevLog, weight list, MLflow. Uses guard's trace and core."""
