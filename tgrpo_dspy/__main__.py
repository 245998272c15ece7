"""``python -m tgrpo_dspy`` is the command ``tgrpo``."""

import sys

from tgrpo_dspy.cli import main

if __name__ == "__main__":
    sys.exit(main())
