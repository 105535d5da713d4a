"""A model from nothing: `python -m stages.init REQUEST.json`."""

import sys

from stages.train.init import main

if __name__ == "__main__":
    sys.exit(main())
