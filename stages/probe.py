"""Answers of one weight to probe files: `python -m stages.probe REQUEST.json`."""

import sys

from stages.inference.probe import main

if __name__ == "__main__":
    sys.exit(main())
