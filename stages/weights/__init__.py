"""Weight files and Hugging Face folders: read, checked, written, converted, made into models. Uses qwen3."""
