"""Units of measurement by how listings write them, and numbers that are written as words."""

from __future__ import annotations

from typing import NamedTuple


class Unit(NamedTuple):
    """A unit: what it measures, and how many base units it is (`offset` for temperature: base = value * factor + offset)."""

    dimension: str
    factor: float = 1.0
    offset: float = 0.0

    def base(self, value: float) -> float:
        return value * self.factor + self.offset


# A dimension, then by number of base units the names.
_TABLE = """
length: 0.001 mm millimeter millimeters millimetre millimetres millimètres millimètre milímetros milímetro 0.01 cm
centimeter centimeters centimetre centimetres zentimeter centimètres centimètre centímetros centimetri 1 m meter
meters metre metres mètre mètres metros metro metri mtr 1000 km kilometer kilometers kilometre kilometres 0.0254 in
inch inches " ″ ” '' zoll pouce pouces pulgada pulgadas pollice pollici duim tum polegadas polegada 0.3048 ft foot
feet ′ fuß pied pieds pies piedi voet 0.9144 yd yds yard yards 1609.344 mi mile miles mass: 0.001 mg milligram
milligrams 1 g gr gram grams gramm gramme grammes gramos grammi gramas 1000 kg kgs kilo kilos kilogram kilograms
kilogramm kilogrammes kilogramos 453.59237 lb lbs pound pounds livres pfund libras libbre 28.349523125 ounce ounces oz
unzen onces onzas volume: 1 ml milliliter milliliters millilitre millilitres millilitros mililitros cc 10 cl
centiliter centilitre 100 dl 1000 l ltr liter liters litre litres litro litros litri lt 29.5735295625 floz oz ounce
ounces fluidounces fluidounce 3785.411784 gal gallon gallons 946.352946 qt quart quarts 473.176473 pt pint pints
236.5882365 cup cups data: 1 kb kilobyte kilobytes kbytes 1000 mb megabyte megabytes mbytes meg megs mo 1000000 gb gig
gigs gigabyte gigabytes gbytes go 1000000000 tb terabyte terabytes to data_speed: 1 kbps kbit/s kbits 1000 mbps mbit/s
mb/s mbits 1000000 gbps gbit/s gb/s power: 0.001 mw milliwatt milliwatts 1 w watt watts vatios 1000 kw kilowatt
kilowatts 745.6998715822702 hp horsepower voltage: 0.001 mv 1 v volt volts vac vdc voltios 1000 kv current: 0.001 ma
milliamp milliamps 1 a amp amps ampere amperes charge: 0.001 mah 1 ah energy: 1 wh 1000 kwh energy_heat: 1 btu btus
frequency: 1 hz hertz 1000 khz 1000000 mhz megahertz 1000000000 ghz gigahertz pressure: 6894.757293168 psi 100000 bar
loudness: 1 db decibel decibels dba light: 1 lm lumen lumens luminance: 1 nit nits cd/m2 cd/m² colour_temperature: 1
kelvin pixels: 1 mp megapixel megapixels mpx mpixel dots: 1 dpi pixel_density: 1 ppi lines: 1 p resistance: 1 ohm ohms
ω 1000 kω kohm kohms capacitance: 1 pf 1000 nf 1000000 µf uf μf turns: 1 rpm speed: 1.609344 mph 1 km/h kmh kph
frames: 1 fps percent: 1 % percent prozent percento pct time: 0.001 ms 1 sec secs second seconds sekunden secondes
segundos secondi 60 min mins minute minutes minuten minutos minuti 3600 h hr hrs hour hours stunden stunde heures
heure horas ore uur 86400 day days tage tagen jours jour días dias giorni dagen 604800 week weeks wochen semaines
semanas settimane weken months: 1 month months mo mos monate mois meses mesi maanden 12 year years yr yrs jahre jahren
ans année années años anni anos jaar count: 1 pack packs pk pcs pc pieces piece count ct set sets units unit pairs
pair stück teilig pièces piezas pezzi peças stuks currency: 1 usd eur gbp dollars dollar euros euro temperature: 1 °c
ºc
"""
UNITS: dict[str, tuple[Unit, ...]] = {}
_dimension, _factor = "", 1.0
for _word in _TABLE.split():
    if _word.endswith(":"):
        _dimension = _word[:-1]
    elif _word[0].isdigit():
        _factor = float(_word)
    else:
        UNITS[_word] = (*UNITS.get(_word, ()), Unit(_dimension, _factor))
UNITS["'"] = UNITS["’"] = (Unit("length", 0.3048), Unit("length", 0.0254))  # merchants write both for it
_FAHRENHEIT = Unit("temperature", 5 / 9, -160 / 9)
UNITS |= dict.fromkeys(("°f", "ºf"), (_FAHRENHEIT,))
for _word in ("°", "º", "degree", "degrees", "grad", "degrés", "grados", "gradi"):
    UNITS[_word] = (Unit("angle"), Unit("temperature"), _FAHRENHEIT)
IDIOM = Unit("idiom")  # of the 2 in "2 in 1", which is no bare number that a unit may be added to

_WORDS: dict[str, set[float]] = {}
for _list in (  # 0, 1, 2 … 12
    "zero one two three four five six seven eight nine ten eleven twelve",
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf",
    "zéro un deux trois quatre cinq six sept huit neuf dix onze douze",
    "cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce",
    "zero uno due tre quattro cinque sei sette otto nove dieci undici dodici",
    "nul een twee drie vier vijf zes zeven acht negen tien elf twaalf",
    "zero um dois três quatro cinco seis sete oito nove dez onze doze",
):
    for _value, _word in enumerate(_list.split()):
        _WORDS.setdefault(_word, set()).add(float(_value))
_OTHERS = """
1 single first une una uma ein eine einen einem eines 2 double dual twin pair pairs couple both ii second doppel paar
doble par paire doppio paio duo 3 triple trio iii third dreifach tri 4 quad quadruple iv fourth quartet quarter 5
fifth 6 vi 7 vii 8 viii octa octo 9 ix 10 deca tenth 12 dozen xii dutzend douzaine docena dozzina 15 fifteen fünfzehn
quinze quince quindici vijftien 16 sixteen 18 eighteen 20 twenty zwanzig vingt veinte venti twintig vinte score 30
thirty dreißig trente treinta trenta dertig trinta 40 forty vierzig quarante cuarenta 50 fifty fünfzig cinquante
cincuenta cinquanta vijftig 60 sixty 100 hundred hundert cent cien cento honderd 1000 thousand tausend mille mil
duizend 0.5 half halb demi medio mezzo 0.25 quarter
"""
_number = 0.0
for _word in _OTHERS.split():
    if _word[0].isdigit():
        _number = float(_word)
    else:
        _WORDS.setdefault(_word, set()).add(_number)
WORD_NUMBERS: dict[str, tuple[float, ...]] = {word: tuple(values) for word, values in _WORDS.items()}
