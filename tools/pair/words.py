"""The word lists of the generated corpus. Data only; written for this repository."""

ANIMALS = "otter heron badger fox hare lynx crane mole goose pony raven trout".split()
PEOPLE = """miller baker sailor weaver doctor farmer painter teacher smith hunter widow
porter shepherd clerk gardener captain singer mason""".split()
PLACES = """river harbour market forest valley tower bridge garden meadow chapel mill station
cellar orchard quarry island""".split()
THINGS = """lantern basket letter kettle ladder blanket hammer mirror candle barrel needle
violin compass button saddle bottle rope drum""".split()
ADJECTIVES = """old quiet bright narrow heavy broken silver distant gentle hollow wooden clever
tired crooked golden patient small cold""".split()
MOVES = """walked hurried wandered returned climbed drifted rode marched crept sailed""".split()
DEEDS = """carried found mended painted hid sold borrowed dropped cleaned opened lost
measured""".split()
ADVERBS = "slowly gladly often never quietly soon badly proudly alone again".split()
TIMES = """At dawn|In the evening|After the storm|Before winter|On market day|Long ago|
One morning|Near midnight|In early spring|That summer""".replace("\n", "").split("|")
LINKS = "and|but|while|because|until|so".split("|")

COLOURS = "red green blue white black amber violet brown".split()
KINDS = "bolt valve cable sensor pump filter gear motor".split()
CITIES = "Arden Belmont Corvo Dunmore Elster Farrow Galway Hollin".split()
STATES = "new open held paid sent done".split()
UNITS = "mm kg ml cm km".split()

VERBS = """load save count merge split scale shift clean pack parse check match fetch build
update remove filter sort""".split()
NOUNS = """items rows values nodes edges words lines pages users files keys parts cells
tasks""".split()
SCALARS = "limit width start depth offset factor level bound".split()
