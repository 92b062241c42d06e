"""`python -m ascend_adapt`: the same as `ascend-adapt`."""

import sys

from ascend_adapt.cli import main

sys.exit(main())
