"""Text that is not copy: turn tokens, template pieces, talk about the answer, injected orders, foreign links, banned terms."""

from __future__ import annotations

import re

from include.validation.registry import validator
from include.validation.view import View

# Turn and padding tokens of common tokenizers; the task model's own list comes with the context.
_TOKEN = re.compile(
    r"<\|[^<>|\s]{1,40}(?:\|>|>|$)|<[^<>|\s]{1,40}\|>|<｜[^<>｜]{1,40}｜>|<</?SYS>>|\[/?INST\]|\[/?(?:UNK|PAD|CLS|SEP|MASK)\]|<0x[0-9A-F]{2}>"
    r"|</?(?:s|pad|unk|eos|bos|mask|eot|eod|turn|end_of_turn|start_of_turn|end_of_text|end_of_utterance|extra_id_\d+|unused\d+|reserved_\w+|tool_call|tool_response|fim_\w+|sep|cls)>"
    r"|(?<=\w)[ĠĊ](?=\w|$)",
    re.I,
)
_SPACE_MARK = re.compile("[ĠĊġċ]")
_ROLE = re.compile(
    r"(?:^|[.!?>\n])[ \t]*(?:(?:assistant|user|system|model)[ \t]*\n|(?:assistant|user):[ \t])|\n[ \t]*(?:assistant|user|model)$|\bassistant[ \t]*\n"
)
_PLACEHOLDER = re.compile(
    r"\{\{[^{}\n]{0,60}\}\}|\{%[^{}\n]{0,60}%\}|\$\{[^{}\n]{1,40}\}|\{(?:title|description|brand|category|attributes|locale|product|name|item)[\w .]{0,20}\}"
    r"|\[(?:your |insert |add |the )?(?:product|brand|company|store|item|model|color|colour|size|material|title|description|feature|price|name|url|link)[^\[\]\n]{0,30}\]"
    r"|</?(?:listing|copy|title|description|output|answer|response|input)>|lorem ipsum",
)
_KIND = r"(?:titles?|descriptions?|listings?|copy|text|version|rewrites?|rewritten|rewording|output|answer|response|suggestions?|options?|summary|headline|name|product title|product description|example)"
_META = re.compile(
    r"^(?:"
    rf"here(?:'s|’s| is| are)\b[^.!?\n:]{{0,60}}?\b{_KIND}\b"
    r"|here(?:'s|’s| is| are) (?:the|your|a|an|my)\b[^.!?\n]{0,60}:\s"
    r"|(?:sure|certainly|absolutely|of course|no problem|okay|ok|alright|great)(?:[!,:.—–-]+(?:\s|$)|\s+(?:here|i(?:'ll|’ll| will| can|'d|’d)|let me|thing)\b)"
    r"|(?:i'm|i’m|i am|we are) (?:sorry|unable|happy|glad|an? (?:ai|language model|assistant))|(?:sorry|apologies|unfortunately)[,.!]? (?:but )?(?:i|we|as)\b"
    r"|i (?:cannot|can't|can’t|can not|could not|couldn't|apologi[sz]e|am unable|rewrote|have (?:re)?written|(?:have )?shortened|need (?:more|the|additional)|(?:will|would|can) (?:now )?(?:re-?write|write|create|provide|follow|generate|use|suggest|recommend|be happy|help)|understand (?:that|the|you)|hope (?:this|that)|don't have|do not have)\b"
    r"|as (?:an? )?(?:ai|artificial intelligence|language model|assistant|large language)\b"
    r"|(?:the user|the customer|the merchant|the listing|the product title|the task|the prompt) (?:wants?|asks?|asked|is asking|needs?|says?|states?|should|provided|has)\b"
    r"|(?:let me|let's|let’s|we need to|i need to|i should|first, i|okay, so|hmm|wait)\b(?: (?:think|see|start|write|rewrite|create|craft|break|analy[sz]e|look|check|try)\b|,)"
    r"|(?:based on|according to|given) (?:the|your|this) (?:provided |given |above |merchant |product |supplied )*(?:information|listing|details|description|data|input|text|instructions?)\b"
    r"|(?:thank you|thanks) for (?:providing|the|your|sharing)\b"
    rf"|(?:(?:re-?written|new|improved|optimi[sz]ed|final|enhanced|updated|revised|suggested|short|product|better|corrected|clean|possible)\s+){{0,3}}(?:title|description|output|answer|response|rewrite|result|headline|version|product name|copy)\s*+(?:\(\w[^()\n]{{0,30}}\)\s*+)?[:：]"
    rf"|(?:voici|voilà) (?:le|la|un|une|votre)\b[^.!?\n]{{0,40}}(?:titre|description|version|texte)|hier (?:ist|sind) (?:der|die|das|ein|eine|ihr|ihre)\b[^.!?\n]{{0,40}}(?:titel|beschreibung|version|text)"
    r"|(?:aquí|aqui) (?:tienes?|está|esta|te dejo|va)\b[^.!?\n]{0,40}(?:título|titulo|descripción|descrição|texto|versión)|ecco (?:il|la|un|una)\b[^.!?\n]{0,40}(?:titolo|descrizione|testo|versione)|hier is (?:de|een|uw|je)\b[^.!?\n]{0,40}(?:titel|beschrijving|tekst)"
    r"|(?:titre|titel|título|titulo|titolo|beschreibung|descripción|descrizione|beschrijving|標題|标题|描述|タイトル|説明)\s*[:：]|(?:好的|当然|以下是|这是|這是|はい、|以下は|もちろん)"
    r"|(?:bien sûr|natürlich|selbstverständlich|claro|por supuesto|certo|certamente|natuurlijk|gerne)[!,.:]\s"
    r")",
)
# What the pattern below always holds, so that most texts need only a look at their words.
_META_WORDS = frozenset({
    "know", "hope", "feel", "anything", "note", "ai", "language", "i", "title", "description", "rewrite", "listing", "would", "count",
    "markdown", "explanation", "reasoning", "changes", "rationale",
})  # fmt: skip
_META_HINTS = (
    " i ", " i'", " i’", "let me know", "hope th", "feel free", "anything else", "note that", "as an ai", "language model", "title ",
    "description ", "listing ", "would you like", " count:", "markdown", "\n",
)  # fmt: skip
_META_ANYWHERE = re.compile(
    r"\b(?:let me know if|i hope (?:this|that|it) helps|feel free to (?:ask if|let me|adjust|modify|edit)|is there anything else|(?:please )?note that (?:i|this (?:title|description|rewrite))"
    r"|as an ai\b|as a language model|i (?:have |'ve |’ve )?(?:rewritten|rewrote|shortened|removed|kept the|used only|followed)\b|this (?:title|description|rewrite) (?:is|uses|follows|includes|highlights|captures|keeps|should|meets|avoids|contains)\b"
    r"|(?:the )?(?:rewritten|revised|new|optimi[sz]ed) (?:title|description|listing) (?:is|would|could|should|reads?)\b|would you like me to\b|(?:word|character) count\s{0,40}[:=]|(?:no|without) (?:\w+ (?:or|and) )?markdown\b)"
    r"|\n[^\S\n]{0,40}(?:\(?note|explanation|reasoning|changes made|rationale)\s{0,40}[:：]"
)


@validator("token_leak")
def token_leak(view: View) -> bool:
    """A turn, stop or padding token, or a chat role as literal text."""
    text, special = view.output, view.task.special_tokens
    if ("<" in text or "[" in text or (not text.isascii() and _SPACE_MARK.search(text))) and view.invents(_TOKEN):
        return True
    if special is not None and any(map(text.__contains__, view.task.special_starts)) and special.search(text):
        return True
    return ("\n" in text or "assistant:" in view.lower or "user:" in view.lower) and view.invents(_ROLE)


@validator("template_leak")
def template_leak(view: View) -> bool:
    """A template's placeholder or tag, or six words running of the prompt's own instructions, absent from the source."""
    text, tokens, told = view.lower, view.tokens, view.task.instructions
    if "{" in text or "[" in text or "<" in text or "lorem" in text:
        found = _PLACEHOLDER.search(text)
        if found is not None and found.group() not in view.source.lower:
            return True
    if len(tokens) < 6 or view.task.starts.isdisjoint(zip(tokens[::4], tokens[1::4], tokens[2::4], strict=False)):
        return False  # six words hold one of every four such runs
    runs = zip(tokens, tokens[1:], tokens[2:], tokens[3:], tokens[4:], tokens[5:], strict=False)
    return any(" ".join(run) not in view.source.lower for run in told.intersection(runs))


@validator("meta_text")
def meta_text(view: View) -> bool:
    """Talk about the answer ("Here is the rewritten title:", "Sure!") that the source does not hold."""
    text = view.lower
    found = _META.match(text)
    if found is None and not _META_WORDS.isdisjoint(view.words) and any(map(text.__contains__, _META_HINTS)):
        found = _META_ANYWHERE.search(text)
    return found is not None and found.group().strip() not in view.source.lower


@validator("banned_term")
def banned_term(view: View) -> bool:
    """A term that the task's settings ban for this merchant or for all."""
    banned, text = view.task.banned, view.lower
    for owner in (view.source.merchant_id, "*"):
        if owner in banned:
            terms, pattern = banned[owner]
            if any(map(text.__contains__, terms)) and pattern.search(text):
                return True
    return False
