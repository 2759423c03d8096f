"""The most frequent function words of the languages that listings are written in, by ISO 639-1 code.

Single letters and words that are ordinary English as well are left out. They are a cheap first opinion on which language a text is in: see include.validation.languages.
"""

from __future__ import annotations

from collections.abc import Iterable

_WORDS = {
    "en": "the and of to in is for with that this are it on as be you your or from by an at can have has not will which its our we they these made all any use when while more was were into their",
    "fr": "le la les de des du et un une pour avec dans sur est sont ce cette ces qui que vous votre vos par plus au aux en ou il elle nos notre pas tout être grâce sans très",
    "de": "der die das und ein eine einen einem einer mit für von ist sind im den dem des auf zu zum zur aus bei nicht auch oder sich wird werden kann durch sie ihre ihr als wie nach unser",
    "es": "el la los las de del un una con para por en es son que se su sus al lo más como este esta muy sin sobre cuando también ideal desde hasta tu tus nuestro",
    "it": "il lo la gli le di del della dei delle un una con sono che si al alla da dal dalla nel nella più come questo questa anche su molto senza ogni tuo",
    "nl": "de het een en van voor met op zijn dat die deze dit aan door te uit bij niet ook of je uw om als wordt worden naar kan onze heeft alle maar",
    "pt": "os de da dos das um uma com para por em na nos nas são que se seu sua ao mais como este esta muito ou sem também você pode foi",
    "sv": "och en ett med för av är som den det de på till från att eller kan inte din du vår har vid så om sig även mycket utan när",
    "da": "og en et med af er som den det de på til fra eller kan ikke din du vores har ved så om sig også meget uden når",
    "nb": "og en et med av er som den det de på til fra eller kan ikke din du vår har ved så om seg også veldig uten når",
    "fi": "ja ei se että joka ovat kun myös tai sekä kanssa sen voi mutta niin jotka tämä hyvin ole kuin",
    "pl": "na jest się nie dla oraz od przez po jak lub który która są ten ta za ze może także bardzo",
    "cs": "na je se nebo ze který která jsou jako od po při ale také tento velmi bez",
    "sk": "na je sa pre aj alebo zo ktorý ktorá sú ako od po pri ale tiež tento veľmi bez",
    "hu": "az és egy hogy nem van ez meg vagy mint egyik csak már amely minden ki el igen nagyon",
    "ro": "și de la în cu pe un pentru din este sunt care ce nu mai sau al ale prin fără foarte această acest",
    "tr": "ve bir bu ile için de da olarak çok daha olan veya her gibi en ne kadar ise değil",
    "id": "dan yang di untuk dengan ini dari pada adalah ke tidak dalam atau dapat akan juga oleh sebagai anda",
    "vi": "và của là có cho với các được trong này một không để những khi đến từ hoặc rất",
    "ru": "на для не из по это что от как или до при за его мы вы также очень без можно",
    "uk": "на для не із по це що до від як та або при за його ми ви також дуже без можна",
    "bg": "на за не от по това че до като или при се са да ни ви също много без може",
    "ar": "في من على مع أو إلى هذا هذه التي الذي هو هي أن عن كل غير ما لا بين",
    "fa": "در از به با این که را برای است آن یک های می شود هر تا بر یا نیز",
    "hi": "और के का की में है से को एक यह पर लिए हैं इस भी या तक नहीं साथ अपने",
    "mr": "आणि आहे च्या मध्ये हे एक या तो ती साठी आहेत किंवा नाही सह पण",
}

# Letters beyond a to z that a language's own words use; another language's letters are a cheap sign as well.
LETTERS = {
    "en": "", "fr": "àâçéèêëîïôùûüœæ", "de": "äöüß", "es": "áéíóúüñ", "it": "àèéìòù", "nl": "éëïóèö", "pt": "áâãàçéêíóôõú", "sv": "åäöé", "da": "æøåé",
    "nb": "æøåéòô", "fi": "äöå", "pl": "ąćęłńóśźż", "cs": "áčďéěíňóřšťúůýž", "sk": "áäčďéíľĺňóôŕšťúýž", "hu": "áéíóöőúüű", "ro": "ăâîșțşţ",
    "tr": "çğıöşüiâ", "id": "é", "ru": "абвгдежзийклмнопрстуфхцчшщъыьэюяё", "uk": "абвгґдеєжзиіїйклмнопрстуфхцчшщьюя",
    "bg": "абвгдежзийклмнопрстуфхцчшщъьюя",
}  # fmt: skip
LANGUAGES = tuple(_WORDS)
# Languages that a few function words cannot tell apart; taken for one.
ALIKE = {"da": "nb", "sk": "cs"}

_LANES: dict[str, int] = {}  # word to a byte lane per language: adding words up counts for all languages at once
for _index, _text in enumerate(_WORDS.values()):
    for _word in _text.split():
        _LANES[_word] = _LANES.get(_word, 0) + (1 << (8 * _index))


def profile(words: Iterable[str]) -> bytes:
    """How many of the words are function words of each of LANGUAGES, in that order; at most 255 such words."""
    return sum([_LANES[word] for word in words if word in _LANES]).to_bytes(len(LANGUAGES), "little")
