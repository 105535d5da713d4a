"""What a weight file holds, and whether it is sound: `python -m stages.dat list|check FILE`."""

import sys

from stages.weights.dat_tool import main

if __name__ == "__main__":
    sys.exit(main())
