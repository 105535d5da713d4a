"""Talk to a weight: `python -m stages.chat --model-dir DIR --weight FILE`."""

import sys

from stages.inference.chat import main

if __name__ == "__main__":
    sys.exit(main())
