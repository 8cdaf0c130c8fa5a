"""humanhash: readable names for numbers.

Comes from:  code that makes a task.
Goes to:     the task's name, as in "emma-massachusetts-lithium-bacon".
Thread:      any; nothing is kept.
The words are those of humanhash, so a task has the same name as with django-q2.
"""

from collections.abc import Sequence
from functools import reduce
from operator import xor
from uuid import uuid4

DEFAULT_WORDLIST = tuple(
    """
    ack alabama alanine alaska alpha angel apart april arizona arkansas artist asparagus aspen august
    autumn avocado bacon bakerloo batman beer berlin beryllium black blossom blue bluebird bravo bulldog
    burger butter california carbon cardinal carolina carpet cat ceiling charlie chicken coffee cola cold
    colorado comet connecticut crazy cup dakota december delaware delta diet don double early earth east
    echo edward eight eighteen eleven emma enemy equal failed fanta fifteen fillet finch fish five fix
    floor florida football four fourteen foxtrot freddie friend fruit gee georgia glucose golf green grey
    hamper happy harry hawaii helium high hot hotel hydrogen idaho illinois india indigo ink iowa island
    item jersey jig johnny juliet july jupiter kansas kentucky kilo king kitten lactose lake lamp lemon
    leopard lima lion lithium london louisiana low magazine magnesium maine mango march mars maryland
    massachusetts may mexico michigan mike minnesota mirror mississippi missouri mobile mockingbird monkey
    montana moon mountain muppet music nebraska neptune network nevada nine nineteen nitrogen north
    november nuts october ohio oklahoma one orange oranges oregon oscar oven oxygen papa paris pasta
    pennsylvania pip pizza pluto potato princess purple quebec queen quiet red river robert robin romeo
    rugby sad salami saturn september seven seventeen shade sierra single sink six sixteen skylark snake
    social sodium solar south spaghetti speaker spring stairway steak stream summer sweet table tango ten
    tennessee tennis texas thirteen three timing triple twelve twenty two uncle undress uniform uranus
    utah vegan venus vermont victor video violet virginia washington west whiskey white william winner
    winter wisconsin wolfram wyoming xray yankee yellow zebra zulu
    """.split()  # noqa: SIM905 - 256 words in a few lines
)
"""A word for each value of a byte."""


class HumanHasher:
    """Turns digests into words. wordlist: 256 words, one for each value of a byte."""

    def __init__(self, wordlist: Sequence[str] = DEFAULT_WORDLIST) -> None:
        if len(wordlist) != 256:
            raise ValueError(f"a word list must have 256 words, but this one has {len(wordlist)}")
        self.wordlist = wordlist

    def humanize(self, hexdigest: str, words: int = 4, separator: str = "-") -> str:
        """Return *words* words for the hexadecimal text *hexdigest*.

        The same digest gives the same words. Raises ValueError if it is not hexadecimal, or has fewer bytes
        than *words*.
        """
        return separator.join(self.wordlist[byte] for byte in self.compress(bytes.fromhex(hexdigest), words))

    @staticmethod
    def compress(data: Sequence[int], target: int) -> list[int]:
        """Reduce *data* to *target* bytes: each is the XOR of a portion; the last portion takes the rest.

        Raises ValueError if there are fewer bytes than that.
        """
        size = len(data) // target if target > 0 else 0
        if not size:
            raise ValueError(f"{len(data)} bytes cannot be compressed to {target}")
        ends = [*range(size, size * target, size), len(data)]
        return [reduce(xor, data[start:end]) for start, end in zip([0, *ends], ends, strict=False)]

    def uuid(self, words: int = 4, separator: str = "-") -> tuple[str, str]:
        """Return a new random id: its words, and its 32 hexadecimal digits."""
        digest = uuid4().hex
        return self.humanize(digest, words, separator), digest


DEFAULT_HASHER = HumanHasher()
humanize = DEFAULT_HASHER.humanize
uuid = DEFAULT_HASHER.uuid
