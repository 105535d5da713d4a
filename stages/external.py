"""One stage by another program: `python -m stages.external REQUEST.json`."""

import sys

from stages.train.external import main

if __name__ == "__main__":
    sys.exit(main())
