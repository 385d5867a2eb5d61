"""A secret goes through a place that everybody can read, and nobody else gets to know it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.public import PrivateKey

from dsgd.engines.dist.launch.key_exchange import NotSealed, public_key, seal, unseal

SECRET = bytes(range(32))
READER, OTHER = PrivateKey(b"r" * 32), PrivateKey(b"o" * 32)
PUBLIC = public_key(READER)
SEALED = seal(SECRET, PUBLIC, "job/1")


def test_what_one_seals_the_other_opens() -> None:
    assert unseal(SEALED, READER, "job/1") == SECRET


def test_nobody_else_opens_it() -> None:
    for private, context in ((OTHER, "job/1"), (READER, "job/2")):
        with pytest.raises(NotSealed, match=r"^a sealed secret has been changed, or is for somebody else$"):
            unseal(SEALED, private, context)


@settings(max_examples=20)
@given(place=st.integers(0, len(SEALED) // 2 - 1), bit=st.integers(0, 7))
def test_a_changed_bit_is_noticed(place: int, bit: int) -> None:
    content = bytearray.fromhex(SEALED)
    content[place] ^= 1 << bit
    with pytest.raises(NotSealed):
        unseal(content.hex(), READER, "job/1")


@given(st.one_of(st.text(max_size=300), st.binary(max_size=150).map(bytes.hex)))
def test_what_is_not_sealed_raises_nothing_else(sealed: str) -> None:
    with pytest.raises(NotSealed):
        unseal(sealed, READER, "job/1")


def test_a_public_key_that_is_none_is_refused() -> None:
    for public in ("", "12", "x" * 64, " " * 64, "0" * 64, PUBLIC + "00", "١" * 64):
        with pytest.raises(NotSealed, match=r"^a public key must "):
            seal(SECRET, public, "job/1")


def test_the_same_secret_never_looks_the_same() -> None:
    sealed = {seal(SECRET, PUBLIC, "job/1") for _ in range(5)}
    assert len(sealed) == 5
    assert not any(SECRET.hex() in text for text in sealed)
