"""What no stand-in is made of."""

from __future__ import annotations

import pytest
from stand_ins import TERMS, Site

from ascend_adapt import provide
from ascend_adapt.testing import stand_in
from ascend_adapt.testing.stand_in import NotShown


def test_a_module_that_is_here_is_not_provided_on_a_stand_in(site: Site) -> None:
    patch = provide("maybe_here", name="maybe", **TERMS)(lambda module: None)
    assert stand_in.shape_of(patch)
    site.write(maybe_here="")
    with pytest.raises(NotShown, match="a real maybe_here is installed here"):
        stand_in.shape_of(patch)
