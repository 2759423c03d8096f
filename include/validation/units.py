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


_TABLE: tuple[tuple[str, float, str], ...] = (
    ("length", 0.001, "mm millimeter millimeters millimetre millimetres millimètres millimètre milímetros milímetro"),
    (
        "length",
        0.01,
        "cm centimeter centimeters centimetre centimetres zentimeter centimètres centimètre centímetros centimetri",
    ),
    ("length", 1.0, "m meter meters metre metres mètre mètres metros metro metri mtr"),
    ("length", 1000.0, "km kilometer kilometers kilometre kilometres"),
    (
        "length",
        0.0254,
        "in inch inches \" ″ ” '' zoll pouce pouces pulgada pulgadas pollice pollici duim tum polegadas polegada",
    ),
    ("length", 0.3048, "ft foot feet ′ fuß pied pieds pies piedi voet"),
    ("length", 0.9144, "yd yds yard yards"),
    ("length", 1609.344, "mi mile miles"),
    ("mass", 0.001, "mg milligram milligrams"),
    ("mass", 1.0, "g gr gram grams gramm gramme grammes gramos grammi gramas"),
    ("mass", 1000.0, "kg kgs kilo kilos kilogram kilograms kilogramm kilogrammes kilogramos"),
    ("mass", 453.59237, "lb lbs pound pounds livres pfund libras libbre"),
    ("mass", 28.349523125, "ounce ounces oz unzen onces onzas"),
    ("volume", 1.0, "ml milliliter milliliters millilitre millilitres millilitros mililitros cc"),
    ("volume", 10.0, "cl centiliter centilitre"),
    ("volume", 100.0, "dl"),
    ("volume", 1000.0, "l ltr liter liters litre litres litro litros litri lt"),
    ("volume", 29.5735295625, "floz oz ounce ounces fluidounces fluidounce"),
    ("volume", 3785.411784, "gal gallon gallons"),
    ("volume", 946.352946, "qt quart quarts"),
    ("volume", 473.176473, "pt pint pints"),
    ("volume", 236.5882365, "cup cups"),
    ("data", 1.0, "kb kilobyte kilobytes kbytes"),
    ("data", 1000.0, "mb megabyte megabytes mbytes meg megs mo"),
    ("data", 1e6, "gb gig gigs gigabyte gigabytes gbytes go"),
    ("data", 1e9, "tb terabyte terabytes to"),
    ("data_speed", 1.0, "kbps kbit/s kbits"),
    ("data_speed", 1000.0, "mbps mbit/s mb/s mbits"),
    ("data_speed", 1e6, "gbps gbit/s gb/s"),
    ("power", 0.001, "mw milliwatt milliwatts"),
    ("power", 1.0, "w watt watts vatios"),
    ("power", 1000.0, "kw kilowatt kilowatts"),
    ("power", 745.6998715822702, "hp horsepower"),
    ("voltage", 0.001, "mv"),
    ("voltage", 1.0, "v volt volts vac vdc voltios"),
    ("voltage", 1000.0, "kv"),
    ("current", 0.001, "ma milliamp milliamps"),
    ("current", 1.0, "a amp amps ampere amperes"),
    ("charge", 0.001, "mah"),
    ("charge", 1.0, "ah"),
    ("energy", 1.0, "wh"),
    ("energy", 1000.0, "kwh"),
    ("energy_heat", 1.0, "btu btus"),
    ("frequency", 1.0, "hz hertz"),
    ("frequency", 1000.0, "khz"),
    ("frequency", 1e6, "mhz megahertz"),
    ("frequency", 1e9, "ghz gigahertz"),
    ("pressure", 6894.757293168, "psi"),
    ("pressure", 1e5, "bar"),
    ("loudness", 1.0, "db decibel decibels dba"),
    ("light", 1.0, "lm lumen lumens"),
    ("luminance", 1.0, "nit nits cd/m2 cd/m²"),
    ("colour_temperature", 1.0, "kelvin"),
    ("pixels", 1.0, "mp megapixel megapixels mpx mpixel"),
    ("dots", 1.0, "dpi"),
    ("pixel_density", 1.0, "ppi"),
    ("lines", 1.0, "p"),
    ("resistance", 1.0, "ohm ohms ω"),
    ("resistance", 1000.0, "kω kohm kohms"),
    ("capacitance", 1.0, "pf"),
    ("capacitance", 1000.0, "nf"),
    ("capacitance", 1e6, "µf uf μf"),
    ("turns", 1.0, "rpm"),
    ("speed", 1.609344, "mph"),
    ("speed", 1.0, "km/h kmh kph"),
    ("frames", 1.0, "fps"),
    ("percent", 1.0, "% percent prozent percento pct"),
    ("time", 0.001, "ms"),
    ("time", 1.0, "sec secs second seconds sekunden secondes segundos secondi"),
    ("time", 60.0, "min mins minute minutes minuten minutos minuti"),
    ("time", 3600.0, "h hr hrs hour hours stunden stunde heures heure horas ore uur"),
    ("time", 86400.0, "day days tage tagen jours jour días dias giorni dagen"),
    ("time", 604800.0, "week weeks wochen semaines semanas settimane weken"),
    ("months", 1.0, "month months mo mos monate mois meses mesi maanden"),
    ("months", 12.0, "year years yr yrs jahre jahren ans année années años anni anos jaar"),
    (
        "count",
        1.0,
        "pack packs pk pcs pc pieces piece count ct set sets units unit pairs pair stück teilig pièces piezas pezzi peças stuks",
    ),
    ("currency", 1.0, "usd eur gbp dollars dollar euros euro"),
)

UNITS: dict[str, tuple[Unit, ...]] = {}
for _dimension, _factor, _names in _TABLE:
    for _name in _names.split():
        UNITS[_name] = (*UNITS.get(_name, ()), Unit(_dimension, _factor))
UNITS["'"] = UNITS["’"] = (Unit("length", 0.3048), Unit("length", 0.0254))  # merchants write both for it
for _name in ("°c", "ºc"):
    UNITS[_name] = (Unit("temperature", 1.0),)
for _name in ("°f", "ºf"):
    UNITS[_name] = (Unit("temperature", 5 / 9, -160 / 9),)
for _name in ("°", "º", "degree", "degrees", "grad", "degrés", "grados", "gradi"):
    UNITS[_name] = (Unit("angle", 1.0), Unit("temperature", 1.0), Unit("temperature", 5 / 9, -160 / 9))

_LISTS = (  # 0, 1, 2 … 12
    "zero one two three four five six seven eight nine ten eleven twelve",
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf",
    "zéro un deux trois quatre cinq six sept huit neuf dix onze douze",
    "cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce",
    "zero uno due tre quattro cinque sei sette otto nove dieci undici dodici",
    "nul een twee drie vier vijf zes zeven acht negen tien elf twaalf",
    "zero um dois três quatro cinco seis sete oito nove dez onze doze",
)
_OTHERS = {
    1: "single first une una uma ein eine einen einem eines",
    2: "double dual twin pair pairs couple both ii second doppel paar doble par paire doppio paio duo",
    3: "triple trio iii third dreifach tri",
    4: "quad quadruple iv fourth quartet quarter",
    5: "fifth",
    6: "vi",
    7: "vii",
    8: "viii octa octo",
    9: "ix",
    10: "deca tenth",
    12: "dozen xii dutzend douzaine docena dozzina",
    15: "fifteen fünfzehn quinze quince quindici vijftien",
    16: "sixteen",
    18: "eighteen",
    20: "twenty zwanzig vingt veinte venti twintig vinte score",
    30: "thirty dreißig trente treinta trenta dertig trinta",
    40: "forty vierzig quarante cuarenta",
    50: "fifty fünfzig cinquante cincuenta cinquanta vijftig",
    60: "sixty",
    100: "hundred hundert cent cien cento honderd",
    1000: "thousand tausend mille mil duizend",
    0.5: "half halb demi medio mezzo",
    0.25: "quarter",
}
WORD_NUMBERS: dict[str, tuple[float, ...]] = {}
for _list in _LISTS:
    for _value, _word in enumerate(_list.split()):
        WORD_NUMBERS[_word] = tuple({*WORD_NUMBERS.get(_word, ()), float(_value)})
for _number, _names in _OTHERS.items():
    for _word in _names.split():
        WORD_NUMBERS[_word] = tuple({*WORD_NUMBERS.get(_word, ()), float(_number)})
