"""Peak memory of a training before anything is loaded: `python -m stages.estimate CONFIG`."""

import sys

from stages.memory.estimate import main

if __name__ == "__main__":
    sys.exit(main())
