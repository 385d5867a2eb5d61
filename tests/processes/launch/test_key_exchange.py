"""A secret goes through a place that everybody can read, and nobody else gets to know it."""

from __future__ import annotations

import secrets

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.processes.launch.key_exchange import (
    GENERATOR,
    KEY_BYTES,
    PRIME,
    KeyPair,
    NotSealed,
    new_key_pair,
    seal,
    unseal,
)

SECRET = bytes(range(32))
FIRST, SECOND, OTHER = new_key_pair(), new_key_pair(), new_key_pair()
SEALED = seal(SECRET, FIRST, SECOND.public, "job/1")


def test_the_prime_is_that_of_the_rfc() -> None:
    """2^2048 - 2^1984 + ([2^1918 e] + 560316) 2^64 - 1, with e by its series."""
    term, e, k = 1 << 2400, 0, 0
    while term:
        e, k = e + term, k + 1
        term //= k
    assert 2**2048 - 2**1984 + ((e >> (2400 - 1918)) + 560316) * 2**64 - 1 == PRIME


def test_the_prime_is_safe_and_the_generator_has_the_large_order() -> None:
    order = (PRIME - 1) // 2
    for number in (PRIME, order):
        witness = secrets.randbelow(number - 3) + 2
        assert pow(witness, number - 1, number) == 1
    assert pow(GENERATOR, order, PRIME) == 1


def test_what_one_seals_the_other_opens() -> None:
    assert unseal(SEALED, SECOND, FIRST.public, "job/1") == SECRET


@pytest.mark.parametrize(
    ("own", "public", "context"),
    [(OTHER, FIRST.public, "job/1"), (SECOND, OTHER.public, "job/1"), (SECOND, FIRST.public, "job/2")],
    ids=["another reader", "another sender", "another context"],
)
def test_nobody_else_opens_it(own: KeyPair, public: str, context: str) -> None:
    with pytest.raises(NotSealed, match=r"^a sealed secret has been changed, or is for somebody else$"):
        unseal(SEALED, own, public, context)


@settings(max_examples=20)
@given(place=st.integers(0, 63), bit=st.integers(0, 7))
def test_a_changed_bit_is_noticed(place: int, bit: int) -> None:
    content = bytearray.fromhex(SEALED)
    content[place] ^= 1 << bit
    with pytest.raises(NotSealed):
        unseal(content.hex(), SECOND, FIRST.public, "job/1")


@given(st.one_of(st.text(max_size=200), st.binary(max_size=100).map(bytes.hex)).filter(lambda text: len(text) != 128))
def test_what_is_not_sealed_raises_nothing_else(sealed: str) -> None:
    with pytest.raises(NotSealed):
        unseal(sealed, SECOND, FIRST.public, "job/1")


@pytest.mark.parametrize("number", [0, 1, PRIME - 1, PRIME, PRIME + 1, 2 ** (8 * KEY_BYTES) - 1])
def test_a_public_key_that_makes_the_shared_number_known_is_refused(number: int) -> None:
    with pytest.raises(NotSealed, match=r"^a public key must be in 2\.\.p-2$"):
        seal(SECRET, FIRST, number.to_bytes(KEY_BYTES).hex(), "job/1")


@pytest.mark.parametrize("public", ["", "12", "x" * 512, " " * 512, FIRST.public + "00", "١" * 512])
def test_a_public_key_that_is_none_is_refused(public: str) -> None:
    with pytest.raises(NotSealed, match=r"^a public key must "):
        seal(SECRET, FIRST, public, "job/1")


def test_the_same_secret_never_looks_the_same() -> None:
    sealed = {seal(SECRET, new_key_pair(), SECOND.public, "job/1") for _ in range(5)}
    sealed |= {seal(SECRET, FIRST, SECOND.public, f"job/{rank}") for rank in range(5)}
    assert len(sealed) == 10
    assert not any(SECRET.hex() in text for text in sealed)
