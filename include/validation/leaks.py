"""Text that is not copy: turn tokens, template pieces, talk about the answer, injected orders, foreign links, banned terms."""

from __future__ import annotations

import re

from include.validation.registry import validator
from include.validation.view import View

# Turn and padding tokens of common tokenizers; the task model's own list comes with the context.
_TOKEN = re.compile(
    r"<\|[^<>|\s]{1,40}(?:\|>|>|$)|<[^<>|\s]{1,40}\|>|<｜[^<>｜]{1,40}｜>|<</?SYS>>|\[/?INST\]|\[/?(?:UNK|PAD|CLS|SEP|MASK)\]|<0x[0-9A-F]{2}>"
    r"|</?(?:s|pad|unk|eos|bos|mask|eot|eod|turn|end_of_turn|start_of_turn|end_of_text|end_of_utterance|extra_id_\d+|unused\d+|reserved_\w+|tool_call|tool_response|fim_\w+|sep|cls)>"
    r"|(?:im_start|im_end|endoftext|eot_id|start_header_id|end_header_id)\b\|?>?|(?<=\w)[ĠĊ](?=\w|$)",
    re.I,
)
_ROLE = re.compile(r"(?:^|[.!?>\n])[ \t]*(?:assistant|user|system|model)[ \t]*(?::?\n|:[ \t])", re.I)
_PLACEHOLDER = re.compile(
    r"\{\{[^{}\n]{0,60}\}\}|\{%[^{}\n]{0,60}%\}|\$\{[^{}\n]{1,40}\}|\{(?:title|description|brand|category|attributes|locale|product|name|item)[\w .]{0,20}\}"
    r"|\[(?:your |insert |add |the )?(?:product|brand|company|store|item|model|color|colour|size|material|title|description|feature|price|name|url|link)[^\[\]\n]{0,30}\]"
    r"|</?(?:listing|copy|title|description|output|answer|response|input)>|lorem ipsum|\b(?:xxx+|tbd|n/?a)\b[ .]*$",
    re.I,
)

_KIND = r"(?:titles?|descriptions?|listings?|copy|text|version|rewrites?|rewritten|rewording|output|answer|response|suggestions?|options?|summary|headline|name|product title|product description|example)"
_META = re.compile(
    r"^(?:"
    rf"here(?:'s|’s| is| are)\b[^.!?\n:]{{0,60}}?\b{_KIND}\b"
    r"|here(?:'s|’s| is| are) (?:the|your|a|an|my)\b[^.!?\n]{0,60}:\s"
    r"|(?:sure|certainly|absolutely|of course|no problem|okay|ok|alright|great)(?:[!,:.—–-]+(?:\s|$)|\s+(?:here|i(?:'ll|’ll| will| can|'d|’d)|let me|thing)\b)"
    r"|(?:i'm|i’m|i am|we are) (?:sorry|unable|happy|glad|an? (?:ai|language model|assistant))|(?:sorry|apologies|unfortunately)[,.!]? (?:but )?(?:i|we|as)\b"
    r"|i (?:cannot|can't|can’t|can not|could not|couldn't|apologi[sz]e|don't|don’t|do not|have (?:re)?written|rewrote|would|need|understand|will|hope)\b"
    r"|as (?:an? )?(?:ai|artificial intelligence|language model|assistant|large language)\b"
    r"|(?:the user|the customer|the merchant|the listing|the product title|the task|the prompt) (?:wants?|asks?|asked|is asking|needs?|says?|states?|should|provided|has)\b"
    r"|(?:let me|let's|let’s|we need to|i need to|i should|first, i|okay, so|hmm|wait)\b(?: (?:think|see|start|write|rewrite|create|craft|break|analy[sz]e|look|check|try)\b|,)"
    r"|(?:based on|according to|given) (?:the|your|this) (?:provided |given |above |merchant |product |supplied )*(?:information|listing|details|description|data|input|text|instructions?)\b"
    r"|(?:thank you|thanks) for (?:providing|the|your|sharing)\b"
    rf"|(?:(?:re-?written|new|improved|optimi[sz]ed|final|enhanced|updated|revised|suggested|short|product|better|corrected|clean|possible)\s+){{0,3}}(?:title|description|output|answer|response|rewrite|result|headline|version|product name|copy|summary|note|explanation)\s*(?:\(\w[^()\n]{{0,30}}\))?\s*[:：]"
    rf"|(?:voici|voilà) (?:le|la|un|une|votre)\b[^.!?\n]{{0,40}}(?:titre|description|version|texte)|hier (?:ist|sind) (?:der|die|das|ein|eine|ihr|ihre)\b[^.!?\n]{{0,40}}(?:titel|beschreibung|version|text)"
    r"|(?:aquí|aqui) (?:tienes?|está|esta|te dejo|va)\b[^.!?\n]{0,40}(?:título|titulo|descripción|descrição|texto|versión)|ecco (?:il|la|un|una)\b[^.!?\n]{0,40}(?:titolo|descrizione|testo|versione)|hier is (?:de|een|uw|je)\b[^.!?\n]{0,40}(?:titel|beschrijving|tekst)"
    r"|(?:titre|titel|título|titulo|titolo|beschreibung|descripción|descrizione|beschrijving|標題|标题|描述|タイトル|説明)\s*[:：]|(?:好的|当然|以下是|这是|這是|はい、|以下は|もちろん)"
    r"|(?:bien sûr|natürlich|selbstverständlich|claro|por supuesto|certo|certamente|natuurlijk|gerne)[!,.:]\s"
    r")",
    re.I,
)
_META_ANYWHERE = re.compile(
    r"\b(?:let me know if|i hope (?:this|that|it) helps|feel free to (?:ask|let me|adjust|modify|reach)|is there anything else|(?:please )?note that (?:i|this (?:title|description|rewrite))"
    r"|as an ai\b|as a language model|i (?:have |'ve |’ve )?(?:rewritten|rewrote|shortened|removed|kept the|used only|followed)\b|this (?:title|description|rewrite|version) (?:is|uses|follows|includes|highlights|captures|keeps|should|meets|avoids|contains)\b"
    r"|(?:the )?(?:rewritten|revised|new|optimi[sz]ed) (?:title|description|listing) (?:is|would|could|should|reads?)\b|would you like me to|word count|character count|(?:no|without) (?:html|markdown)\b)"
    r"|\n\s*(?:\(?note|explanation|reasoning|changes made|rationale)\s*[:：]",
    re.I,
)

_INJECTION = re.compile(
    r"(?:ignore|disregard|forget|override|bypass)\b[^.!?\n]{0,30}\b(?:instructions?|prompts?|rules?|directions?|guidelines?|above|everything|commands?|constraints?)\b"
    r"|\b(?:answer|respond|reply|output|print|write|say|return) (?:only|exactly|just|with only|nothing but)\b[ :]|\byou are (?:now|no longer)\b|\b(?:system|developer) prompt\b|\bnew instructions?\b ?:"
    r"|\b(?:act|behave|respond) as (?:if you|an? (?:ai|assistant|unrestricted|different))\b|\bdo not follow\b[^.!?\n]{0,30}\b(?:instructions?|rules?)\b|\b(?:reveal|repeat|show) (?:your|the) (?:system|instructions?|prompt)\b"
    r"|\b(?:ignorez|ignoriere|ignora|ignorar|oublie[zr]?|vergiss|olvida|negeer|dimentica)\b[^.!?\n]{0,40}\b(?:instruc\w*|anweisung\w*|istruzion\w*|consignes?|instrucc\w*|règles?|regeln?)",
    re.I,
)
_WORD = re.compile(r"\w+")
_TLD = "com|net|org|info|biz|io|co|ai|app|dev|shop|store|online|site|xyz|top|club|example|test|invalid|de|fr|es|it|nl|uk|us|eu|ru|cn|jp|in|br|pl|ch|at|be|se|me|tv|ly|gl|link|click|deals|sale|buy"
_URL = re.compile(
    r"https?://[^\s<>\"')]+|\bwww\.[^\s<>\"')]+|(?<![\w@.-])(?:[a-z0-9-]{1,63}\.){0,3}[a-z0-9-]{2,63}\.(?:"
    + _TLD
    + r")(?![\w-]|\.\w)(?:/[^\s<>\"')]*)?",
    re.I,
)
_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}\.\w{2,}")
_PHONE = re.compile(r"(?<![\w.])(?:\+\d{1,3}[ .-]?)?\(?\d{3}\)?[ .-]\d{3}[ .-]\d{4}(?![\w.])")


def payloads(source: str) -> list[str]:
    """What a merchant's text orders the model to do: from each injection phrase to the end of its line, at most 400 characters."""
    return [source[m.start() : m.start() + 400].split("\n", 1)[0] for m in _INJECTION.finditer(source)]


@validator("token_leak")
def token_leak(view: View) -> bool:
    """A turn, stop or padding token, or a chat role as literal text."""
    if view.chars.isdisjoint("<[|>_ĠĊ｜:\n"):
        return False
    found = _TOKEN.search(view.output)
    if found is not None and found.group() not in view.source_text:
        return True
    special = view.task.special_tokens
    if special is not None and special.search(view.output):
        return True
    role = _ROLE.search(view.output)
    return role is not None and role.group().strip().lower() not in view.source_lower


@validator("template_leak")
def template_leak(view: View) -> bool:
    """A template's placeholder or tag, or six words running of the prompt's own instructions, absent from the source."""
    if not view.chars.isdisjoint("{[<") or "lorem" in view.lower:
        found = _PLACEHOLDER.search(view.output)
        if found is not None and found.group().lower() not in view.source_lower:
            return True
    words, runs = view.words, view.task.instructions
    if len(words) < 6 or not runs:
        return False
    return not runs.isdisjoint(zip(words, words[1:], words[2:], words[3:], words[4:], words[5:], strict=False))


@validator("injected_instruction")
def injected_instruction(view: View) -> bool:
    """The output obeys or repeats an order that stands in the merchant's text, or holds such an order itself."""
    if _INJECTION.search(view.output):
        return True
    if _INJECTION.search(view.source_text) is None:
        return False
    ours = view.lower
    squeezed = " ".join(_WORD.findall(ours))
    for payload in payloads(view.source_lower):
        if any(link.group() in ours for link in re.finditer(r"[\w-]{2,63}\.[a-z]{2,}", payload)):
            return True
        order = _INJECTION.sub("\n", payload)
        words = _WORD.findall(order)
        elsewhere = view.source_lower.replace(payload, " ")
        for run in (words[i : i + 3] for i in range(max(1, len(words) - 2))):
            phrase = " ".join(run)
            if (
                len(phrase) > 5
                and f" {phrase} " in f" {squeezed} "
                and phrase not in " ".join(_WORD.findall(elsewhere))
            ):
                return True
    return False


@validator("suspicious_source", flag=True)
def suspicious_source(view: View) -> bool:
    """The merchant's text gives orders to a model. A flag: the row is judged by its output."""
    return _INJECTION.search(view.source_text) is not None


@validator("foreign_url")
def foreign_url(view: View) -> bool:
    """A link, mail address or telephone number that the source does not hold."""
    if "." not in view.chars and "@" not in view.chars and "-" not in view.chars:
        return False
    for pattern in (_URL, _EMAIL, _PHONE):
        for found in pattern.finditer(view.output):
            if found.group().rstrip(".,;:!?").lower() not in view.source_lower:
                return True
    return False


@validator("meta_text")
def meta_text(view: View) -> bool:
    """Talk about the answer ("Here is the rewritten title:", "Sure!") that the source does not hold."""
    found = _META.search(view.output) or _META_ANYWHERE.search(view.output)
    return found is not None and found.group().strip().lower() not in view.source_lower


@validator("banned_term")
def banned_term(view: View) -> bool:
    """A term that the task's settings ban for this merchant or for all."""
    banned = view.task.banned
    if not banned:
        return False
    for owner in (view.source.merchant_id, "*"):
        pattern = banned.get(owner)
        if pattern is not None and pattern.search(view.output):
            return True
    return False
