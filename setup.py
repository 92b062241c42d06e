"""Metadata that depends on where the repository is published; everything else is in setup.cfg.

``make dist PROJECT_URL=https://...`` sets the address: it becomes the project URLs, and relative links of the README,
which package indexes cannot follow, become absolute.
"""

import os
import re
from pathlib import Path

from setuptools import setup

url = os.environ.get("PROJECT_URL", "").rstrip("/")
published = {}
if url:
    readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    readme = re.sub(r"(!\[[^\]]*\]\()(?!https?:|#)", rf"\g<1>{url}/raw/main/", readme)
    readme = re.sub(r"(?<!!)(\[[^\]]*\]\()(?!https?:|#)", rf"\g<1>{url}/blob/main/", readme)
    pages = {
        "Documentation": "docs/index.md",
        "Changelog": "CHANGELOG.md",
        "Evidence": "docs/evidence.md",
    }
    links = {name: f"{url}/blob/main/{path}" for name, path in pages.items()}
    published = {
        "long_description": readme,
        "project_urls": {"Source": url, "Issues": f"{url}/issues", **links},
    }
setup(**published)
