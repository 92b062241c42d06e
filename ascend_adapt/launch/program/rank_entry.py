"""The program that each rank runs. It is alone in its folder, because Python puts that folder first on ``sys.path``.

``python -m`` would put the current folder first, so that a ``tokenize.py`` there would hide the standard library's.
"""

import sys

from ascend_adapt.launch import rank_entry

rank_entry.main(sys.argv[1:])
