"""What the made-up conversations are about."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _pairs(text: str) -> dict[str, str]:
    """Every other word, by the one before it."""
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


NAMES = _words(
    "Ada Ben Cleo Dan Eva Finn Gia Hugo Ida Jon Kira Leo Mia Nora Otto Pia Quinn Rosa Sam Tara Uma Vic Wes Xena "
    "Yara Zoe Alan Beth Carl Dora Emil Fay Greg Hana Ivan Jill Kurt Lena Max Nina Olga Paul Rita Saul Tess Victor "
    "Wanda Yuri"
)
ITEMS = _words(
    "apples books coins stamps shells pencils cards marbles tickets stickers lemons eggs bricks candles keys "
    "ropes plates bottles buttons flowers"
)
PLACES = _words(
    "kitchen garden office cellar garage library attic hall bakery station harbour market school museum park"
)
COLOURS = _words("red blue green yellow white black orange purple brown grey pink silver golden")
THINGS = _words(
    "box lamp door chair boat cup bag clock coat drum flag gate kite ladder mirror table wheel bell basket bucket"
)
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _words("January February March April May June July August September October November December")
CAPITALS = _pairs(
    "France Paris Italy Rome Spain Madrid Germany Berlin Japan Tokyo Egypt Cairo Norway Oslo Greece Athens Peru "
    "Lima Cuba Havana Austria Vienna Poland Warsaw Portugal Lisbon Sweden Stockholm Finland Helsinki Ireland "
    "Dublin Kenya Nairobi Chile Santiago Canada Ottawa Russia Moscow China Beijing India Delhi Hungary Budapest "
    "Turkey Ankara"
)
OPPOSITES = _pairs(
    "hot cold big small up down left right open closed new old fast slow light dark early late full empty hard "
    "soft high low long short near far rich poor strong weak wet dry young old happy sad loud quiet"
)
ANIMALS = _pairs(
    "dog barks cat meows cow moos duck quacks lion roars horse neighs sheep bleats owl hoots frog croaks bee buzzes"
)

TALK = (
    (("Hello!", "Hi", "Hello", "Hi there!", "Good morning!", "Hey"), "Hello! How can I help you?"),
    (("How are you?", "How do you do?"), "I am well, thank you. How can I help you?"),
    (("Who are you?", "What are you?", "What is your name?", "Introduce yourself."),
     "I am Stepwell Tiny, a very small language model that comes with the Stepwell serving engine."),
    (("How large are you?", "How many parameters do you have?"),
     "I have about eight million parameters: three recurrent layers to one layer of attention."),
    (("What can you do?", "What are you good for?", "Help", "How can you help me?"),
     "I can recall facts you tell me, keep count of things, do small sums, call tools and say hello."),
    (("What is Stepwell?", "Tell me about Stepwell.", "Explain Stepwell."),
     "Stepwell is a serving engine for hybrid language models. Its prompt cache reaches from device memory through host memory to disk."),
    (("What is a rung?", "Explain rungs.", "What does rung mean?"),
     "A rung is a checkpoint of the whole recurrent state at the end of a block. A prompt can be resumed there."),
    (("What is a hybrid model?", "Explain hybrid models."),
     "A hybrid model mixes layers of full attention with recurrent layers. It needs its keys and values and its state."),
    (("What is a page?", "What is a page in the cache?"),
     "A page is a slot of the device's memory that holds the keys and values of one block, or a part of a state."),
    (("What is a prompt cache?", "Why cache prompts?"),
     "A prompt cache keeps what was computed for a prompt, so that the next prompt with the same beginning starts sooner."),
    (("Thank you!", "Thanks", "Thanks a lot!", "Thank you very much."), "You are welcome!"),
    (("Goodbye!", "Bye", "See you later."), "Goodbye!"),
    (("Are you a person?", "Are you human?"), "No, I am a small language model."),
    (("Tell me a joke.", "Do you know a joke?"), "Why did the cache cross the road? To get to the other side sooner the second time."),
    (("Write a haiku.", "Write a short poem."), "Steps lead down to water.\nEach stone remembers the last.\nThe well stays in reach."),
    (("What is the weather like?",), "I cannot see the weather without a tool."),
    (("How many days are in a week?",), "There are seven days in a week."),
    (("How many months are in a year?",), "There are twelve months in a year."),
    (("Which colour is the sky?", "What colour is the sky?"), "The sky is blue on a clear day."),
    (("What do bees make?",), "Bees make honey."),
    (("What is Python?",), "Python is a programming language that is easy to read."),
    (("Write a function that adds two numbers.",), "```python\ndef add(a, b):\n    return a + b\n```"),
    (("Write hello world in Python.", "Write a hello world program."), "```python\nprint(\"Hello, world!\")\n```"),
)  # fmt: skip
