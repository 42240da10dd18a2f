"""The text of the page "A class of 45 minutes": chapters of paragraphs that open lessons.

Braces mark figures. Each is said by the sentence of the lesson that its paragraph opens, whose
recipe takes it from recorded runs; tests compare them. A pupil needs no glossary for these words.
"""

from typing import NamedTuple


class Paragraph(NamedTuple):
    """A claim, a lesson's sentence that shows it (from 1), and a question with its answer."""

    title: str
    text: str
    lesson: str
    point: int
    question: str
    answer: str


class Chapter(NamedTuple):
    """Paragraphs that belong together, and the minutes that a class needs for them."""

    title: str
    minutes: int
    paragraphs: tuple[Paragraph, ...]


MACHINE = ("forward pass", "logits", "softmax", "sample", "append")
"""The machine in five words, in the order of its loop."""

LOOP = Chapter("The loop", 8, (
    Paragraph(
        "One token, and then again",
        "A model writes one token at a time; a token is a word, or a piece of one. It reads all "
        "that is there, adds one token, and begins again. Here it has read {5} tokens and added "
        "“elephant”; now it reads {6}.",
        "by-hand", 5,
        "Could a model write a whole sentence at once?",
        "Not in this loop. What comes third depends on what came second, and that is not known "
        "before it is drawn.",
    ),
    Paragraph(
        "From a text to numbers",
        "A forward pass takes the text through all layers of the model. What comes out is one "
        "number for each of {49,152} tokens, its logit: {8.46} for “cat”, {7.84} for “elephant”. "
        "A larger number means a better fit.",
        "by-hand", 2,
        "What does the model say about the token after next?",
        "Nothing. A forward pass is about the next token alone.",
    ),
    Paragraph(
        "From numbers to chances",
        "Softmax makes chances of the logits: e to the power of each, divided by the sum of all, "
        "so that they are positive and add up to 1. “cat” gets {12%}, “elephant” {6.3%}.",
        "softmax", 1,
        "“cat” is ahead by 0.62. Why is its chance nearly twice as large?",
        "Only differences count: e to the power of 0.62 is 1.86. Each further logit multiplies "
        "the chance by e, which is 2.72.",
    ),
    Paragraph(
        "Sample, and append",
        "Then the dice are thrown. Chance is added to every token, and the highest score wins: "
        "“cat” comes to {−0.69}, “elephant” to {+1.48}. So “elephant” is drawn, though “cat” was "
        "likelier, and is put after the text.",
        "by-hand", 4,
        "What would happen without dice?",
        "“cat” would be chosen, today and tomorrow: the same text for everybody who asks.",
    ),
))  # fmt: skip

CHOICE = Chapter("Which token?", 10, (
    Paragraph(
        "Five strategies",
        "Greedy takes the likeliest token, pure sampling draws from all, top-k and top-p draw "
        "from the likeliest ones, and a temperature makes the dice weaker or stronger. One "
        "beginning is written {20} times by each. Pure sampling uses {523} different tokens, and "
        "soon makes no sense.",
        "strategies", 2,
        "Which would you take for a poem, which for a sum?",
        "A sum has one right answer: greedy, or a low temperature. A poem may surprise: a higher "
        "temperature, with a cut by top-p against nonsense.",
    ),
    Paragraph(
        "Cut off the tail",
        "A vocabulary has tens of thousands of tokens that do not fit. Top-k keeps the 40 "
        "likeliest, whatever they are. Top-p keeps the fewest that add up to {90%}: here that is "
        "{15}, and at another place it is 1.",
        "stages", 3,
        "Why is a fixed number of tokens too many in one place and too few in another?",
        "After “United States of” one token fits, after “I like” hundreds do. Top-p follows the "
        "model's own certainty, top-k cannot.",
    ),
    Paragraph(
        "One beginning, three temperatures",
        "Nothing differs but the temperature, not even the dice. At 0.2 the likeliest token wins. "
        "At {0.7} the fourth likeliest comes. At 1.6 it is number 31, and the sentence goes "
        "elsewhere.",
        "temperature", 2,
        "What happens at temperature 0?",
        "The dice have no part any more: the largest logit wins. That is called argmax, or greedy.",
    ),
    Paragraph(
        "A temperature is no intelligence",
        "Before softmax the logits are divided by the temperature. At 0.2 “cat” has {96%}, where "
        "it had 12% before. What the model knows is in the logits, and these are the same, to the "
        "last bit, at all five temperatures.",
        "softmax", 2,
        "Does a model become cleverer at a low temperature?",
        "No. It repeats what it holds most likely, right or wrong, with more certainty.",
    ),
))  # fmt: skip

END = Chapter("The end", 4, (
    Paragraph(
        "The end token",
        "A model stops by drawing a token that means the end. It is a token like any other: here "
        "it has {24%}, and comes as number {20}.",
        "endings", 1,
        "Why do some answers never seem to end?",
        "The end is a chance too. Where a sentence cannot end, its chance is next to nothing, and "
        "it has to wait for the next full stop.",
    ),
    Paragraph(
        "A limit, and stop strings",
        "A program has two more brakes. A limit (max tokens) cuts after {5} tokens, in the middle "
        "of a sentence. A stop string cuts where a given text appears, for example at a comma.",
        "endings", 2,
        "Does the model know of them?",
        "No. It is the program that stops asking for more.",
    ),
    Paragraph(
        "What comes after the end",
        "If a program overlooks the end token, the model goes on: it makes up the next question, "
        "and {40} tokens that nobody asked for.",
        "endings", 5,
        "Why does it write a question, and not an answer?",
        "It continues a conversation, as in the texts it learned from. After an answer comes the "
        "next question, whoever asks it.",
    ),
))  # fmt: skip

SPEED = Chapter("Speed and cost", 10, (
    Paragraph(
        "What the cache keeps",
        "For every token that was read, each layer keeps two lists of numbers, its key and its "
        "value: the KV cache. The first pass does so for the {13} tokens of the beginning, and "
        "they are not computed again.",
        "cache", 1,
        "Why need a token that was read once not be read again?",
        "What it computed depends on the text before it alone, and that text does not change any "
        "more.",
    ),
    Paragraph(
        "With the cache and without",
        "With the cache, a new token means that one token is read. Without it, the whole text is "
        "read again: the last round reads {76} tokens, and all rounds together {2,848}.",
        "cache", 3,
        "How much longer does a text of twice the length take without a cache?",
        "About four times as long: twice as many rounds, and each reads twice as much on average.",
    ),
    Paragraph(
        "A round still costs more and more",
        "The price is memory: {23 kB} for every token. And each new token looks back at all the "
        "others, which is {26%} more work after a thousand of them.",
        "cache", 5,
        "What grows with the length of a text, even with a cache?",
        "The memory of the cache, and the time to look back through it: both in a straight line.",
    ),
    Paragraph(
        "Guess first, then look",
        "A forward pass can read several tokens for nearly the price of one. So the next few are "
        "guessed, and one pass judges all of them. Here {44} were guessed, and {37} were right.",
        "speculation", 2,
        "Do guesses change the text?",
        "No. A guess stays only if it is what the model would have drawn there.",
    ),
    Paragraph(
        "Why the words come one by one",
        "The first token is late, since all of the question is read before it; then the others "
        "follow one by one. A program may show each as it comes, which is called streaming: then a "
        "reader begins after {1} pass, and otherwise after {40}.",
        "streaming", 4,
        "Does streaming make a text come sooner?",
        "Its beginning, not its end. But somebody who reads along hardly waits.",
    ),
    Paragraph(
        "What a text costs",
        "Tokens in and tokens out are counted, and each has a price. A model remembers nothing, so "
        "a conversation is read again with every question: for a question of two words {89} tokens "
        "go in, for an answer of {28}.",
        "cost", 2,
        "How can a long conversation be made cheaper?",
        "Begin a new one, or send a short account of the old one.",
    ),
))  # fmt: skip

PITFALLS = Chapter("Where it goes wrong", 8, (
    Paragraph(
        "It does not know its answer",
        "Before a token is drawn, there is no plan of the sentence, only chances. “massive” had "
        "{7.0%} before it was drawn, and with other dice the story had another vessel, or none.",
        "snowball", 1,
        "Then why do most sentences make sense?",
        "Each token is chosen to fit all that is there, and the text so far says much about how "
        "it may go on.",
    ),
    Paragraph(
        "Round and round",
        "Always taking the likeliest token soon leads to the same words again: of its groups of "
        "four tokens {91%} were there before.",
        "strategies", 1,
        "Why does one repetition lead to the next?",
        "The model has learned that what stood there twice may well come a third time.",
    ),
    Paragraph(
        "No look ahead",
        "The causal mask closes the future: a token sees those before it, never those after it. "
        "If the last word is another, nothing changes of what was computed for the {8} tokens "
        "before it, not one bit.",
        "causal-mask", 3,
        "Why is this needed to learn from books?",
        "A model learns to say what comes next. If it could see it, there would be nothing to "
        "learn.",
    ),
    Paragraph(
        "Raised on other people's texts",
        "It learned from texts of people, and now reads its own: that is called exposure bias. A "
        "person's text surprises it by {6.0} bits a token (one bit is a coin that is tossed), what "
        "it draws by {5.8}, and always the likeliest by only 1.9.",
        "exposure", 2,
        "Where does a strange word in the middle of a text come from?",
        "Perhaps a slightly strange one before it: the model goes on from what stands there.",
    ),
    Paragraph(
        "One word, another story",
        "“massive” becomes “small”, and nothing else is touched, not even the dice. Of the {30} "
        "tokens that follow, {0} are the same: a vessel has become an island.",
        "snowball", 4,
        "Can the model go back and mend a word?",
        "Not in this loop. It can only add another one.",
    ),
))  # fmt: skip

OTHER_WAYS = Chapter("Other ways to write", 5, (
    Paragraph(
        "Fill the gap",
        "An autoencoding model sees both sides of a gap. Of the letter that is missing in "
        "ackno▢ledged it is {89%} sure.",
        "three-other-ways", 1,
        "Why can such a model not simply write an essay?",
        "It fills gaps in a text that is there. Nobody has told it how long the essay is to be.",
    ),
    Paragraph(
        "Out of the fog",
        "A diffusion model begins with gaps only, and fills those first of which it is surest: "
        "here in the order {n, o, k, w}.",
        "three-other-ways", 3,
        "What is gained if it fills several gaps at once?",
        "Time. What is lost is that those letters do not know of each other.",
    ),
    Paragraph(
        "Write, then mend",
        "Hybrids look back at what they wrote, and hide again what seems least likely. A wrong "
        "letter is gone after {5} passes.",
        "three-other-ways", 5,
        "Why do not all models work like this?",
        "Each pass computes all of the text, where the loop computes one token.",
    ),
    Paragraph(
        "A form that cannot be missed",
        "If a program is to read the answer, a mask takes away all tokens that break the form "
        "before one is drawn. Of {49,152} it leaves {2} at the beginning.",
        "structured-output", 2,
        "The cat's name and age are now in the right form. Are they right, too?",
        "Nobody knows. A form can be forced, the truth cannot.",
    ),
))  # fmt: skip

CHAPTERS = (LOOP, CHOICE, END, SPEED, PITFALLS, OTHER_WAYS)
"""The class in the order that a teacher goes."""
