"""The most frequent function words of the languages that listings are written in, by ISO 639-1 code.

They are a cheap first opinion on which language a text is in: see include.validation.languages.
"""

from __future__ import annotations

_WORDS = {
    "en": "the and of to in is for with that this are it on as be you your or from by an at can have has not will which its our we they these made all any use when while more was were into their",
    "fr": "le la les de des du et un une pour avec dans sur est sont ce cette ces qui que vous votre vos par plus au aux en ou il elle nos notre pas tout être grâce sans très",
    "de": "der die das und ein eine einen einem einer mit für von ist sind im in den dem des auf zu zum zur aus bei nicht auch oder sich wird werden kann durch sie ihre ihr als wie nach unser",
    "es": "el la los las de del y un una con para por en es son que se su sus al lo más como este esta muy o sin sobre cuando también ideal desde hasta tu tus nuestro",
    "it": "il lo la i gli le di del della dei delle e un una con per in è sono che si al alla da dal dalla nel nella più come questo questa anche o su molto senza ogni tuo",
    "nl": "de het een en van voor met op in is zijn dat die deze dit aan door te uit bij niet ook of je uw u om als wordt worden naar kan onze heeft alle maar",
    "pt": "o a os as de do da dos das e um uma com para por em no na nos nas é são que se seu sua ao à mais como este esta muito ou sem também você pode foi",
    "sv": "och en ett med för av är som den det de på i till från att eller kan inte din du vår har vid så om sig även mycket utan när",
    "da": "og en et med for af er som den det de på i til fra at eller kan ikke din du vores har ved så om sig også meget uden når",
    "nb": "og en et med for av er som den det de på i til fra at eller kan ikke din du vår har ved så om seg også veldig uten når",
    "fi": "ja on ei se että joka ovat kun myös tai sekä kanssa sen voi mutta niin jotka tämä hyvin ole kuin",
    "pl": "i w na z do jest się nie dla oraz to o od przez po jak lub który która są ten ta za ze może także bardzo",
    "cs": "a v na s z je se do pro o k i nebo ze který která jsou jako od po při ale také tento velmi bez",
    "sk": "a v na s z je sa do pre o k aj alebo zo ktorý ktorá sú ako od po pri ale tiež tento veľmi bez",
    "hu": "a az és egy hogy nem is van ez meg vagy mint egyik csak már amely minden ki el igen nagyon",
    "ro": "și de la în cu pe un o pentru din este sunt care ce nu mai sau al ale prin fără foarte această acest",
    "tr": "ve bir bu ile için de da olarak çok daha olan veya her gibi en ne kadar ise değil",
    "id": "dan yang di untuk dengan ini dari pada adalah ke tidak dalam atau dapat akan juga oleh sebagai anda",
    "vi": "và của là có cho với các được trong này một không để những khi đến từ hoặc rất",
    "ru": "и в на с для не из по это что к от как а или до при за его мы вы у также очень без можно",
    "uk": "і в на з для не із по це що до від як та або при за його ми ви у також дуже без можна",
    "bg": "и в на с за не от по това че до като а или при се е са да ни ви също много без може",
    "ar": "في من على مع و أو إلى هذا هذه التي الذي هو هي أن عن كل غير ما لا بين",
    "fa": "و در از به با این که را برای است آن یک های می شود هر تا بر یا نیز",
    "hi": "और के का की में है से को एक यह पर लिए हैं इस भी या तक नहीं साथ अपने",
    "mr": "आणि आहे च्या मध्ये हे एक या तो ती साठी आहेत व किंवा नाही सह पण",
}

LANGUAGES_OF: dict[str, tuple[str, ...]] = {}
for _language, _text in _WORDS.items():
    for _word in _text.split():
        LANGUAGES_OF[_word] = (*LANGUAGES_OF.get(_word, ()), _language)
