"""``python -m pagemill.cli``: the same as the ``pagemill`` command."""

import sys

from pagemill.cli import main

sys.exit(main())
