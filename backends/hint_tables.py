"""What a property's words suggest, and values that look real: tables for backends/schema_hints.py.

Data only. Nothing here is code or means anything to a shell; addresses, numbers and names are nobody's.
"""

# kind: the words that suggest it. The first kind of which one is among the property's words is taken, so special
# ones stand before general ones ("city name" is a city, "user id" is an id).
_HINT_KINDS = (
    ("command", "command cmd script shell bash exec argv cmdline"),
    ("sql", "sql"),
    ("email", "email mail emails"),
    ("useragent", "useragent"),
    ("slug", "slug permalink"),
    ("image", "avatar image photo picture thumbnail logo icon"),
    ("url", "url uri link href website webpage homepage endpoint webhook"),
    ("uuid", "uuid guid"),
    ("mac", "mac macaddress"),
    ("phone", "phone telephone mobile fax tel cellphone whatsapp sms"),
    ("ip", "ip ipv ipaddress"),
    ("host", "hostname domain host fqdn subdomain"),
    ("secret", "password token secret apikey key passphrase pin"),
    ("currency", "currency currencies"),
    ("language", "language lang locale"),
    ("timezone", "timezone tz"),
    ("mime", "mime mimetype"),
    ("isbn", "isbn"),
    ("iata", "iata airport"),
    ("flight", "flight"),
    ("hash", "hash checksum sha digest md fingerprint commit etag"),
    ("path", "path file filename filepath folder directory"),
    ("username", "username login handle nickname screenname"),
    ("color", "color colour"),
    ("unit", "unit units"),
    ("zip", "zip zipcode postcode postal"),
    ("country", "country nation nationality"),
    ("city", "city town location place destination origin departure arrival municipality locations cities where venue "
             "hometown birthplace capital"),
    ("region", "region state province county district"),
    ("coordinates", "coordinates geo latlng latlon gps"),
    ("street", "street address road"),
    ("company", "company organization organisation employer vendor supplier brand manufacturer publisher airline shop "
                "store"),
    ("product", "product item sku article"),
    ("datetime", "datetime timestamp created updated deleted createdat updatedat modified"),
    ("date", "date day birthday deadline due checkin checkout dob expiry expiration anniversary"),
    ("time", "time clock hour"),
    ("duration", "duration"),
    ("weekday", "weekday dayofweek"),
    ("month", "month"),
    ("year", "year"),
    ("season", "season"),
    ("version", "version release"),
    ("expression", "expression formula equation calculation"),
    ("code", "code snippet source sourcecode program"),
    ("firstname", "firstname forename given fname"),
    ("lastname", "lastname surname family lname"),
    ("department", "department team"),
    ("job", "job occupation profession role position"),
    ("gender", "gender sex"),
    ("school", "school university college"),
    ("food", "food dish meal cuisine recipe ingredient dessert drink menu"),
    ("animal", "animal pet species breed"),
    ("artist", "artist band singer musician composer"),
    ("song", "song track album"),
    ("movie", "movie film show series"),
    ("book", "book novel"),
    ("sport", "sport exercise workout"),
    ("vehicle", "vehicle car"),
    ("condition", "weather forecast climate conditions"),
    ("category", "category genre kind type group"),
    ("tag", "tag label keyword topic hobby interest skill"),
    ("status", "status phase stage"),
    ("priority", "priority severity urgency"),
    ("sentiment", "sentiment mood tone"),
    ("ticker", "ticker stock symbol"),
    ("title", "title headline heading event subject"),
    ("query", "query search question term q"),
    ("sentence", "description summary text content body message comment note reason explanation answer details bio "
                 "reasoning rationale thought instruction instructions prompt review feedback abstract caption "
                 "paragraph quote biography remarks notes step conclusion"),
    ("person", "name person author owner user customer assignee contact attendee participant sender recipient player "
               "employee patient guest fullname speaker manager teacher student passenger driver director"),
    ("id", "id identifier ref reference number no"),
)
HINT_FIXED_KINDS = ("command", "code", "sql")   # never taken from examples or from what the user says
HINT_RANKS = {word: (rank, kind) for rank, (kind, words) in reversed(tuple(enumerate(_HINT_KINDS)))
              for word in words.split()}
# What an object is about says what its plain "name" or "title" is.
HINT_OWNER_KINDS = frozenset(("city", "country", "region", "company", "product", "department", "school", "food",
                              "animal", "artist", "song", "movie", "book", "sport", "vehicle", "job", "tag", "category"))
HINT_NAMELIKE = frozenset(("name", "title", "label"))
# Property names that say nothing by themselves: what the tool is about may.
HINT_VAGUE = frozenset(("to", "from", "cc", "bcc", "input", "value", "arg", "argument", "param", "target", "x", "data"))
HINT_ABOUT_KINDS = frozenset(("email", "phone", "url", "city", "country", "person", "path", "currency", "ip", "host",
                              "query", "language", "ticker", "sentence", "expression"))

HINT_TEXTS = {
    "command": ("echo hello",), "code": ("echo hello",), "expression": ("2 + 2", "12 + 30", "7 + 8"),
    "sql": ("SELECT name, total FROM orders LIMIT 10", "SELECT COUNT(*) FROM customers",
            "SELECT city, AVG(price) FROM sales GROUP BY city"),
    "secret": ("example",),
    "currency": ("EUR", "USD", "GBP", "JPY", "CHF"), "language": ("en", "de", "fr", "es", "nb"),
    "timezone": ("Europe/Oslo", "Europe/Berlin", "America/New_York", "Asia/Tokyo", "UTC"),
    "mime": ("text/plain", "application/json", "image/png"),
    "useragent": ("Mozilla/5.0 (X11; Linux x86_64) Example/1.0",),
    "mac": ("00:00:5E:00:53:0A", "00:00:5E:00:53:1C", "00:00:5E:00:53:F2"),     # RFC 7042: for documentation
    "iata": ("OSL", "BER", "CDG", "HND", "LIS", "YYZ"),
    "slug": ("quiet-harbour", "notes-from-the-garden", "last-train-north"),
    "path": ("notes.txt", "report.pdf", "photos/garden.jpg", "data/prices.csv"),
    "color": ("blue", "green", "red", "amber", "teal"), "unit": ("celsius", "kilometre", "kilogram", "litre"),
    "company": ("Northwind Traders", "Blue Harbour Ltd", "Acme Corporation", "Willow Works"),
    "product": ("desk lamp", "garden chair", "water bottle", "notebook", "rain jacket"),
    "weekday": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "month": ("January", "March", "April", "June", "September", "October", "November"),
    "year": ("2024", "2025", "2026"), "season": ("spring", "summer", "autumn", "winter"),
    "version": ("1.0.0", "1.2.3", "2.4.1"),
    "department": ("Sales", "Engineering", "Support", "Finance"),
    "job": ("engineer", "teacher", "designer", "nurse", "analyst"), "gender": ("female", "male", "other"),
    "school": ("Harbour High School", "University of the North", "Willow College"),
    "food": ("mushroom risotto", "fish soup", "lentil curry", "apple pie", "tomato salad"),
    "animal": ("cat", "dog", "horse", "otter", "hedgehog"),
    "artist": ("The Lanterns", "Clara Larsen", "Harbour Quartet"),
    "song": ("Last Train North", "Copper Moon", "Tide and Timber"),
    "movie": ("The Quiet Harbour", "A Window in Winter", "The Island Letters"),
    "book": ("The Lighthouse Log", "Notes from the Garden", "A Map of Small Rivers"),
    "sport": ("running", "swimming", "football", "climbing", "yoga"),
    "vehicle": ("van", "estate car", "electric bicycle", "pickup truck"),
    "condition": ("partly cloudy", "light rain", "sunny", "overcast", "snow showers"),
    "category": ("general", "travel", "garden", "music", "sports"),
    "tag": ("travel", "garden", "music", "weather", "cooking", "history"),
    "status": ("active", "pending", "done", "open"), "priority": ("low", "medium", "high"),
    "sentiment": ("positive", "neutral", "negative"), "ticker": ("ACME", "NWND", "BLHB"),
    "title": ("The quiet harbour", "A walk by the river", "Notes from the garden", "The last train north"),
    "query": ("weather today", "best hiking trails", "opening hours", "train times"),
    "sentence": ("The harbour was quiet in the morning.", "A short note about the garden and the river.",
                 "The train arrives before noon.", "Everything works as expected."),
    "duration": ("30 minutes", "2 hours", "45 minutes"),
    "firstname": ("Anna", "Ben", "Clara", "David", "Elena", "Hugo", "Iris", "Noah"),
    "lastname": ("Miller", "Larsen", "Novak", "Rossi", "Schmidt", "Tanaka", "Olsen"),
}

# City, country, its code, region, postcode, time zone, currency, latitude, longitude.
HINT_PLACES = (
    ("Oslo", "Norway", "NO", "Oslo", "0150", "Europe/Oslo", "NOK", 59.9139, 10.7522),
    ("Berlin", "Germany", "DE", "Berlin", "10115", "Europe/Berlin", "EUR", 52.5200, 13.4050),
    ("Paris", "France", "FR", "\u00cele-de-France", "75001", "Europe/Paris", "EUR", 48.8566, 2.3522),
    ("Kyoto", "Japan", "JP", "Kyoto", "600-8216", "Asia/Tokyo", "JPY", 35.0116, 135.7681),
    ("Lisbon", "Portugal", "PT", "Lisbon", "1100-148", "Europe/Lisbon", "EUR", 38.7223, -9.1393),
    ("Toronto", "Canada", "CA", "Ontario", "M5H 2N2", "America/Toronto", "CAD", 43.6532, -79.3832),
    ("Vienna", "Austria", "AT", "Vienna", "1010", "Europe/Vienna", "EUR", 48.2082, 16.3738),
    ("Bergen", "Norway", "NO", "Vestland", "5003", "Europe/Oslo", "NOK", 60.3913, 5.3221),
    ("San Francisco", "United States", "US", "California", "94103", "America/Los_Angeles", "USD", 37.7749, -122.4194),
    ("Sydney", "Australia", "AU", "New South Wales", "2000", "Australia/Sydney", "AUD", -33.8688, 151.2093),
)
HINT_PLACE_FIELDS = {"city": 0, "country": 1, "countrycode": 2, "region": 3, "zip": 4, "timezone": 5, "currency": 6}
HINT_STREETS = ("Harbour Street", "Orchard Lane", "Station Road", "Mill Square", "Garden Avenue")

# Names that are places wherever they stand in a message, in any letter case.
HINT_KNOWN_PLACES = frozenset("""
amsterdam|athens|austin|bangkok|barcelona|beijing|bergen|berlin|boston|brussels|budapest|cairo|chicago|copenhagen|
dallas|delhi|denver|dubai|dublin|edinburgh|frankfurt|geneva|hamburg|helsinki|hong kong|houston|istanbul|jakarta|johannesburg|
kyoto|lagos|lima|lisbon|london|los angeles|madrid|manila|melbourne|mexico city|miami|milan|montreal|moscow|mumbai|munich|
nairobi|new york|new york city|osaka|oslo|paris|porto|prague|rome|san francisco|santiago|seattle|seoul|shanghai|singapore|
stockholm|sydney|taipei|tokyo|toronto|vancouver|venice|vienna|warsaw|washington|zurich
""".replace("\n", "").split("|"))
HINT_KNOWN_COUNTRIES = frozenset("""
argentina|australia|austria|belgium|brazil|canada|chile|china|denmark|egypt|finland|france|germany|greece|iceland|india|
indonesia|ireland|israel|italy|japan|kenya|mexico|netherlands|new zealand|nigeria|norway|peru|poland|portugal|russia|
south africa|south korea|spain|sweden|switzerland|thailand|turkey|ukraine|united kingdom|united states|vietnam
""".replace("\n", "").split("|"))
HINT_KNOWN_LANGUAGES = {
    "english": "en", "german": "de", "french": "fr", "spanish": "es", "italian": "it", "portuguese": "pt",
    "dutch": "nl", "norwegian": "nb", "swedish": "sv", "danish": "da", "finnish": "fi", "polish": "pl", "russian": "ru", "greek": "el",
    "turkish": "tr", "arabic": "ar", "hebrew": "he", "hindi": "hi", "chinese": "zh", "mandarin": "zh", "japanese": "ja",
    "korean": "ko", "vietnamese": "vi", "thai": "th", "ukrainian": "uk", "latin": "la"}
HINT_KNOWN_CURRENCIES = {
    "dollar": "USD", "dollars": "USD", "euro": "EUR", "euros": "EUR", "pounds": "GBP", "yen": "JPY", "francs": "CHF",
    "rupees": "INR", "yuan": "CNY", "kroner": "NOK", "usd": "USD", "eur": "EUR", "gbp": "GBP", "jpy": "JPY",
    "chf": "CHF", "nok": "NOK", "sek": "SEK", "dkk": "DKK", "cad": "CAD", "aud": "AUD", "inr": "INR", "cny": "CNY", "brl": "BRL"}
HINT_KNOWN_WORDS = {
    "color": "red blue green yellow orange purple pink black white grey gray brown teal amber violet",
    "unit": "celsius fahrenheit kelvin metric imperial kilometers kilometres km miles meters metres feet inches kilograms "
            "kg pounds grams ounces liters litres gallons",
    "weekday": "monday tuesday wednesday thursday friday saturday sunday",
    "month": "january february march april june july august september october november december",
    "season": "spring summer autumn winter",
    "priority": "low medium high urgent critical",
    "animal": "cat dog horse rabbit hamster parrot cow sheep",
}
HINT_WORDS = ("harbour", "lantern", "meadow", "river", "orchard", "compass", "garden", "window", "signal", "market",
              "summer", "letter", "bridge", "valley", "copper", "island", "winter", "pepper", "thistle", "maple",
              "candle", "forest", "hazel", "basket", "anchor", "pebble", "willow", "cinder")

# name of a number: (lowest, highest, decimals)
HINT_NUMBERS = {
    "age": (18, 80, 0), "year": (2020, 2026, 0), "month": (1, 12, 0), "day": (1, 28, 0), "hour": (8, 20, 0),
    "minute": (0, 59, 0), "second": (0, 59, 0), "price": (2, 200, 2), "amount": (5, 500, 2), "cost": (2, 200, 2),
    "total": (10, 900, 2), "salary": (30000, 90000, 0), "income": (20000, 90000, 0), "budget": (100, 5000, 0),
    "discount": (5, 50, 0), "balance": (10, 9000, 2), "fee": (1, 60, 2), "tax": (1, 90, 2), "tip": (1, 20, 2),
    "latitude": (-60, 70, 4), "lat": (-60, 70, 4), "longitude": (-170, 170, 4), "lng": (-170, 170, 4),
    "lon": (-170, 170, 4), "long": (-170, 170, 4), "altitude": (0, 2000, 0), "elevation": (0, 2000, 0),
    "temperature": (-5, 30, 1), "humidity": (20, 90, 0), "percent": (0, 100, 0), "pressure": (980, 1040, 0),
    "percentage": (0, 100, 0), "progress": (0, 100, 0), "score": (0, 1, 2), "confidence": (0, 1, 2),
    "probability": (0, 1, 2), "similarity": (0, 1, 2), "relevance": (0, 1, 2),
    "rate": (0, 1, 2), "ratio": (0, 1, 2), "weight": (1, 90, 1), "height": (10, 200, 0), "width": (10, 200, 0),
    "depth": (1, 90, 0), "length": (1, 200, 0), "area": (20, 400, 0), "volume": (1, 90, 1), "distance": (1, 400, 1),
    "radius": (1, 50, 0), "duration": (5, 90, 0), "port": (8000, 9000, 0), "floor": (0, 12, 0), "room": (1, 400, 0),
    "bedroom": (1, 5, 0), "bathroom": (1, 3, 0), "mileage": (1000, 120000, 0),
    "id": (1000, 9999, 0), "count": (1, 10, 0), "result": (1, 20, 0), "item": (1, 20, 0), "employee": (5, 900, 0),
    "quantity": (1, 10, 0), "limit": (1, 20, 0), "size": (1, 40, 0),
    "num": (1, 10, 0), "page": (1, 5, 0), "rating": (1, 5, 0), "stars": (1, 5, 0), "index": (0, 9, 0),
    "offset": (0, 20, 0), "priority": (1, 5, 0), "level": (1, 5, 0), "rank": (1, 20, 0), "guests": (1, 6, 0),
    "adults": (1, 4, 0), "children": (0, 3, 0), "nights": (1, 10, 0), "people": (1, 8, 0), "servings": (1, 8, 0),
    "timestamp": (1700000000, 1780000000, 0), "calories": (80, 700, 0), "views": (10, 90000, 0), "likes": (0, 900, 0),
    "followers": (5, 9000, 0), "population": (5000, 900000, 0), "attempts": (1, 5, 0), "retries": (0, 5, 0),
    "stock": (1, 90, 0), "days": (1, 14, 0), "weeks": (1, 12, 0), "timeout": (5, 60, 0), "speed": (1, 120, 0),
    "k": (1, 10, 0)}
