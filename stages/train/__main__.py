"""One stage: load a weight, train it on rows, export it. `python -m stages.train REQUEST.json`."""

import sys

from stages.train.stage import main

if __name__ == "__main__":
    sys.exit(main())
