"""Hugging Face folders to weight files and back: `python -m stages.convert to-dat|to-hf`."""

import sys

from stages.weights.convert import main

if __name__ == "__main__":
    sys.exit(main())
