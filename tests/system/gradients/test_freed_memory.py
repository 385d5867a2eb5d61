"""Memory that one pass has freed is used by the next."""

from __future__ import annotations

import platform
import textwrap

import pytest

from tests.support.command import in_python


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_used_again() -> None:
    """By a tensor of 9,216 pages that is made and dropped again and again, once the heap has grown to what it needs."""
    program = """
        import resource, sys, torch
        from dsgd.host.resources import keep_freed_memory
        if sys.argv[1] == "kept":
            keep_freed_memory()
        torch.set_num_threads(1)
        def pages(times):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(times):
                torch.ones(9 << 20)
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        pages(10)
        print(pages(5))
    """

    def fresh_pages(what: str) -> int:
        return int(in_python(textwrap.dedent(program), what))

    assert fresh_pages("kept") <= 9216  # a block may still move once
    assert fresh_pages("given back") > 4 * 9216
