"""What synthetic conversations are about: topics, and tasks that a user might set.

All of it was written for alula. A task with {topic} is put to the model as it stands or described
to it so that it writes the user's turn itself; one with {text} is given something the model wrote.
"""

from __future__ import annotations

from typing import NamedTuple


class Task(NamedTuple):
    """One thing a user may ask for."""

    kind: str
    request: str
    """With {topic}, or with {text} for a task on a text that is handed over."""


TOPICS: tuple[str, ...] = tuple(
    """
growing tomatoes on a balcony
the water cycle
learning to play the guitar
a first visit to the dentist
sorting algorithms
the French Revolution
baking sourdough bread
saving money on a small income
the solar system
training a puppy
writing a letter of complaint
the rules of chess
how vaccines work
a broken bicycle chain
planning a birthday party
the history of paper
regular expressions
fractions and decimals
a cold that will not go away
moving to another country
bees and pollination
a job interview
the human heart
plastic in the ocean
making friends as an adult
the Roman Empire
electric cars
dreams and sleep
a school play
photosynthesis
cleaning a kitchen
volcanoes
reading more books
public transport in cities
a lost parcel
the stock market
knitting a scarf
spreadsheet formulas
an argument with a neighbour
the Great Wall of China
running a first marathon
recycling at home
a summer in the mountains
web pages that load slowly
probability with dice
the invention of the telephone
vegetarian cooking
stage fright
a leaking tap
the moon landing
learning Spanish
antibiotics
a museum visit with children
prime numbers
wind energy
a thank-you note
the migration of birds
passwords and safety online
jazz music
hiring a new colleague
a rainy weekend
the digestive system
glaciers
painting a room
database indexes
an old family photograph
a garden in winter
compound interest
coral reefs
giving a speech at a wedding
the Silk Road
back pain at a desk
a recipe for soup
unit tests
loneliness in old age
the periodic table
a trip to Japan
setting up a small business
linked lists
insects in the house
the Renaissance
a bad night's sleep
simple machines
a community garden
earthquakes
writing a novel
time management
the circulation of blood
a used car
maps and navigation
an apology to a friend
ancient Egypt
basic first aid
pie charts and bar charts
homework and motivation
tea and coffee
recursion
a new pair of glasses
rainforests
a debate about school uniforms
the size of atoms
a week without a phone
woodworking for beginners
the electoral system
percentages in everyday life
cats that scratch furniture
space telescopes
a picnic in the park
command-line tools
chronic stress
the printing press
a letter from a soldier
composting
swimming lessons
triangles and angles
the immune system
a lighthouse
renting a first flat
national parks
an unexpected visitor
the speed of light
meal planning for a week
object-oriented programming
shyness
castles in the Middle Ages
a science fair project
the price of bread
fishing on a lake
dinosaurs
a meeting that takes too long
dictionaries and hash tables
the ozone layer
folk tales
a sprained ankle
budgeting for a holiday
the Olympic Games
mosquitoes
a village market
artificial intelligence
equations with one unknown
whales
a birthday cake
feedback for a student
the industrial revolution
houseplants
reading a weather forecast
a noisy flat
file formats
handwriting
deserts
a dog that barks at night
the history of numbers
packing for a hike
a bus that never comes
healthy snacks
the lungs
a treasure map
date and time in programs
grief
lightning
learning to drive
the bicycle
a dinner for eight
loops and conditions
the Vikings
sun protection
a lost key
volunteering
area and perimeter
rivers and dams
a magic shop
editing a text
bones and joints
a night train
shopping lists
the English alphabet
gravity
a power cut
storing data in files
beaches
houses made of wood
a talking animal
mean, median and mode
the life of a butterfly
working from home
a snowstorm
allergies
sending an email to a teacher
islands
an inventor
string functions
bread and salt in history
tides
a stubborn child
the first day at a new job
electric circuits
a forgotten password
proverbs
the human brain
a bridge across a valley
input validation
robots
gratitude
ratios in recipes
penguins
a secret garden
summarising an article
camping in the rain
stars and constellations
negotiating a salary
a clock tower
the Amazon
error messages
frogs
the four seasons
a stolen painting
speed, distance and time
bicycles in Amsterdam
honest advertising
an empty theatre
soil
a library at night
kindness at work
matrices
honey
travelling by ship
a family recipe
binary numbers
""".strip().splitlines()
)

TASKS: tuple[Task, ...] = (
    Task("chat", "Explain {topic} to me in simple words."),
    Task("chat", "I have a question about {topic}. What should I know first?"),
    Task("chat", "What are common mistakes when it comes to {topic}?"),
    Task("chat", "Can you give me some advice on {topic}?"),
    Task("chat", "Why does {topic} matter?"),
    Task("chat", "What is the most surprising thing about {topic}?"),
    Task("chat", "Let's talk about {topic}. What do you think?"),
    Task("code", "Write a Python function that has to do with {topic}."),
    Task("code", "Write a small Python class for a program about {topic}, with docstrings."),
    Task("code", "Write a JavaScript function for a web page about {topic}."),
    Task("code", "Write SQL: a table for data about {topic} and two queries on it."),
    Task("code", "Write a short C program with an example that is about {topic}."),
    Task("code", "Write a Python script that reads a file with data on {topic} and sums it up."),
    Task("code", "Write a Python function with three tests; choose an example from {topic}."),
    Task("code", "Write a bash script that could help somebody who works on {topic}."),
    Task("mathematics", "Make up a word problem about {topic} and solve it step by step."),
    Task("mathematics", "Give a calculation with numbers from {topic} and show every step."),
    Task("mathematics", "Set three exercises on arithmetic with {topic} as the theme, and solve."),
    Task("mathematics", "Work out a percentage in an example about {topic}."),
    Task("mathematics", "Solve a simple equation that comes up with {topic}."),
    Task("lists", "List ten facts about {topic}, numbered."),
    Task("lists", "Give me a checklist for {topic}."),
    Task("lists", "Make a table with three columns about {topic}."),
    Task("lists", "Name eight things that belong to {topic}, each with one sentence."),
    Task("lists", "List advantages and disadvantages: {topic}."),
    Task("lists", "Give step-by-step instructions to do with {topic}."),
    Task("story", "Write a short story about {topic}."),
    Task("story", "Write a poem about {topic}."),
    Task("story", "Write a dialogue between two friends about {topic}."),
    Task("story", "Tell a fairy tale in which {topic} plays a part."),
    Task("story", "Write the first page of a novel that begins with {topic}."),
    Task("writing", "Write an email to a colleague about {topic}."),
    Task("writing", "Write a short essay on {topic}."),
    Task("writing", "Write a newspaper article on {topic}."),
    Task("writing", "Write a lesson plan about {topic} for a class of twelve-year-olds."),
    Task("translation", "Translate five simple sentences about {topic} into French."),
    Task("translation", "Give ten words about {topic} in English, Spanish and German."),
    Task("extraction", "Write a short paragraph about {topic}, then list its key words as JSON."),
    Task("rewriting", "Say this again in full:\n\n{text}"),
    Task("rewriting", "Please give me a copy of this passage with nothing changed:\n\n{text}"),
    Task(
        "rewriting",
        "Fix mistakes in the text below if there are any and return all of it.\n\n{text}",
    ),
    Task("rewriting", "Put the following into the past tense:\n\n{text}"),
    Task("rewriting", "Rewrite this in a friendlier tone:\n\n{text}"),
    Task("rewriting", "Turn this into a numbered list:\n\n{text}"),
    Task("rewriting", "Write this once more, as a letter:\n\n{text}"),
    Task("summary", "Sum this up in two sentences:\n\n{text}"),
    Task("summary", "What is the main point of this text?\n\n{text}"),
    Task("extraction", "Which names, places and numbers occur here?\n\n{text}"),
    Task("translation", "Translate into Spanish:\n\n{text}"),
)
