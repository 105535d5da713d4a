"""Weight files and Hugging Face folders: read, checked, written, converted; and models built from them. Uses
qwen3 and nvfp4.
"""
