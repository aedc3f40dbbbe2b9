"""Prompts to measure with, by kind of text, because acceptance depends on it more than on anything.

Rewriting is the kind whose answers repeat their input; the others do so less and less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from alula.errors import UsageError


class Workload(NamedTuple):
    """One prompt and the kind of text it asks for."""

    kind: str
    prompt: str


_CHAT = (
    "Hello! I moved to a new town last week. How do I get to know people here?",
    "I keep waking up at four in the morning. What could I try tonight?",
    "Explain to a ten-year-old why the sky is blue.",
    "My houseplant has yellow leaves. What are the likely reasons?",
    "What is the difference between a virus and a bacterium?",
    "I have a job interview tomorrow and I am nervous. What should I prepare?",
    "Why do cats purr?",
)

_CODE = (
    "Write a Python function that returns the n-th Fibonacci number without recursion.",
    "Write a Python class Stack with push, pop, peek and is_empty, with docstrings.",
    "Write a JavaScript function that checks whether a string is a palindrome.",
    "Write an SQL query that lists the ten customers with the highest total order value.",
    "Write a Python function that reads a CSV file and returns the mean of every numeric column.",
    "Write a C function that reverses a linked list in place.",
    "Write a Python function for binary search in a sorted list, and three assertions.",
)

_MATHEMATICS = (
    "A train travels 180 km in 2 hours and then 120 km in 1.5 hours. What is its mean speed?",
    "Solve 3x + 7 = 22 and show every step.",
    "A rectangle is 12 cm long and 5 cm wide. Find its area, its perimeter and its diagonal.",
    "What is 15 % of 240? Show how you calculate it.",
    "Tom has three times as many apples as Ann. Together they have 48. How many has each?",
    "Add the whole numbers from 1 to 100 and explain the trick.",
    "A shirt costs 40 euros after a discount of 20 %. What did it cost before?",
)

_LISTS = (
    "List the days of the week, and for each one thing that people often do on it.",
    "List twelve countries with their capitals, one on each line.",
    "Give a numbered list of ten tips for saving water at home.",
    "List the planets of the solar system in order, each with one fact.",
    "Write a packing list for a week of hiking in the mountains.",
    "List eight kinds of tree, and for each where it grows and what its wood is used for.",
    "Make a table with the columns month, season and number of days for all twelve months.",
)

_STORY = (
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Tell a bedtime story about a hedgehog who is afraid of the dark.",
    "Write the opening of a detective story set in a bakery.",
    "Write a story in which two rivals have to share a small boat.",
    "Tell a tale about a clockmaker whose clocks run backwards.",
    "Write a story about the last train of the night.",
    "Write about a girl who can hear what birds say to each other.",
)

_REWRITING = (
    "Repeat this text:\n\nThe harbour was quiet in the early morning. Two fishing boats lay "
    "at the long pier, and a third was coming in with the tide. On the wall above the steps an old "
    "man was mending a net, and his dog slept beside him in the first patch of sun.",
    "Copy the following list without changing anything:\n\n1. Measure the room and draw a plan.\n"
    "2. Move the furniture to the middle.\n3. Cover the floor with paper.\n4. Wash the walls with "
    "warm water.\n5. Fill the holes and let them dry.\n6. Paint the ceiling first, then the walls.",
    "Correct the spelling in this text and write it out again:\n\nThe libary opens at nine oclock "
    "and closes at six in the evning. On Saturdays it opens at ten and closes at two. Books can be "
    "borrowed for four weeks and renewed twice if nobody else has asked for them.",
    "Rewrite this function with the name total_price instead of calc and change nothing else:\n\n"
    "def calc(items, tax_rate):\n    total = 0\n    for item in items:\n        total += "
    'item["price"] * item["quantity"]\n    total += total * tax_rate\n    return round(total, 2)\n',
    "Write this text again in full, with every sentence on a line of its own:\n\nThe river rises "
    "in the hills north of the town. It passes under three stone bridges. In spring it often "
    "floods the meadows. In summer children swim in it. In winter it freezes along the banks.",
    "Replace Monday with Tuesday in this message and write out the whole message:\n\nDear all, the "
    "meeting on Monday begins at ten in the large room on the second floor. Please bring the "
    "figures for the last quarter and a list of open questions. Lunch will be served at noon. "
    "Those who cannot come on Monday please tell Maria by Friday.",
    "Repeat this JSON exactly:\n\n"
    '{"name": "Anna Keller", "age": 34, "city": "Bremen", "languages": ["German", "English", '
    '"Dutch"], "address": {"street": "Am Wall 12", "postcode": "28195"}, "active": true, '
    '"tags": ["customer", "newsletter", "retail"]}',
    "Put this paragraph into the past tense and keep all its words otherwise:\n\nThe baker gets up "
    "at three in the morning. He lights the oven, mixes the dough and shapes the loaves. At six "
    "he opens the shop. His first customer is always the postman, who buys two rolls and a coffee.",
    "Repeat this recipe word for word:\n\nPancakes: Mix 200 grams of flour with a pinch of "
    "salt. Beat two eggs with 400 millilitres of milk. Stir the milk into the flour until the "
    "batter is smooth. Let it rest for half an hour. Heat a little butter in a pan and bake thin "
    "pancakes on both sides until they are golden.",
    "Copy this table and add nothing:\n\n| city | country | river |\n|---|---|---|\n| Vienna | "
    "Austria | Danube |\n| Paris | France | Seine |\n| London | England | Thames |\n| Rome | Italy "
    "| Tiber |\n| Cologne | Germany | Rhine |\n| Prague | Czech Republic | Vltava |",
)

WORKLOADS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rewriting": _REWRITING,
        "code": _CODE,
        "lists": _LISTS,
        "mathematics": _MATHEMATICS,
        "chat": _CHAT,
        "story": _STORY,
    }
)
"""Prompts by kind, the most repetitive kind first."""


def select(kinds: Sequence[str] = (), prompts_per_kind: int | None = None) -> list[Workload]:
    """The first prompts of each kind; all kinds where none is named, all prompts where None.

    Raises UsageError for an unknown kind, and where fewer than one prompt is asked for.
    """
    for kind in kinds:
        if kind not in WORKLOADS:
            raise UsageError(
                f"there is no kind of text {kind!r}",
                f"the workloads are {', '.join(WORKLOADS)}",
                "name one of these, or leave --kinds out to measure all",
            )
    if prompts_per_kind is not None and prompts_per_kind < 1:
        raise UsageError(
            f"cannot measure {prompts_per_kind} prompts of a kind",
            "it must be a whole number of at least 1",
            "give a larger number",
        )
    return [
        Workload(kind, prompt)
        for kind in dict.fromkeys(kinds or WORKLOADS)
        for prompt in WORKLOADS[kind][:prompts_per_kind]
    ]
