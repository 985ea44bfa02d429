"""Values that look real: what names suggest, what agrees within an object, and what the user's message mentions."""
import json
import random
import re
import unittest

from backends.schema_check import satisfies
from backends.schema_formats import format_holds
from backends.schema_said import SaidValues
from backends.schema_values import generate_value

SEEDS = range(12)
S = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}


def described(text, **more):
    return dict({"type": "string", "description": text}, **more)


def shape(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def made(schema, hint="", seed=1, about=""):
    return generate_value(schema, random.Random(seed), hint, about=about)


class KindTest(unittest.TestCase):

    def test_strings_look_like_what_their_names_say(self):
        table = {
            "email": r"[a-z.]+@example\.(com|org)\Z", "phone": r"\+1-555-01\d\d\Z", "website_url": r"https://example\.com/",
            "departure_date": r"\d{4}-\d\d-\d\d\Z", "arrival_time": r"\d\d:\d\d\Z", "created_at": r"\d{4}-\d\d-\d\dT\d\d:",
            "uuid": r"[0-9a-f-]{36}\Z", "order_id": r"[A-H]-\d{4}\Z", "currency": r"[A-Z]{3}\Z", "country_code": r"[A-Z]{2}\Z",
            "street_address": r"\d+ [A-Z]\w+ \w+\Z", "zip_code": r"[\dA-Z][\dA-Z -]+\Z", "coordinates": r"-?\d+\.\d+, -?\d+\.\d+\Z",
            "hex_color": r"#[0-9a-f]{6}\Z", "file_path": r"[\w/]+\.\w{2,4}\Z", "ip_address": r"192\.0\.2\.\d+\Z",
            "mac_address": r"00:00:5E:00:53:[0-9A-F]{2}\Z", "timezone": r"[A-Z]\w+/\w+|UTC\Z", "isbn": r"978-0-\d{3}-\d{5}-\d\Z",
            "username": r"[a-z]+[._][a-z]+\Z", "commit_sha": r"[0-9a-f]{40}\Z", "url_slug": r"[a-z]+(-[a-z]+)+\Z",
            "sql_query": r"SELECT ", "weekday": r"\w+day\Z", "title": r"[A-Z][\w ]+\Z", "summary": r"[A-Z].*\.\Z",
            "avatar": r"https://example\.com/images/\w+\.png\Z", "airport_code": r"[A-Z]{3}\Z", "version": r"\d+\.\d+\.\d+\Z"}
        for name, pattern in table.items():
            for seed in SEEDS:
                with self.subTest(name=name, seed=seed):
                    self.assertRegex(made(shape(**{name: S}), seed=seed)[name], pattern)

    def test_an_isbn_has_its_check_digit(self):
        for seed in SEEDS:
            digits = made(shape(isbn=S), seed=seed)["isbn"].replace("-", "")
            self.assertEqual(sum(int(digit) * (1, 3)[at % 2] for at, digit in enumerate(digits)) % 10, 0)

    def test_numbers_are_of_a_likely_size(self):
        table = {"latitude": (-90, 90), "longitude": (-180, 180), "age": (18, 80), "rating": (1, 5), "discount_percent": (0, 100),
                 "unit_price": (2, 200), "quantity": (1, 10), "max_results": (1, 20), "confidence": (0, 1)}
        for name, (low, high) in table.items():
            for seed in SEEDS:
                with self.subTest(name=name, seed=seed):
                    self.assertTrue(low <= made(shape(**{name: NUMBER}), seed=seed)[name] <= high)

    def test_a_plain_name_is_that_of_its_object(self):
        value = made(shape(company=shape(name=S), city=shape(name=S), user=shape(name=S), product=shape(title=S)))
        self.assertIn(value["company"]["name"], ("Northwind Traders", "Blue Harbour Ltd", "Acme Corporation", "Willow Works"))
        self.assertIn(value["city"]["name"], ("Oslo", "Berlin", "Paris", "Kyoto", "Lisbon", "Toronto", "Vienna", "Bergen",
                                              "San Francisco", "Sydney"))
        self.assertRegex(value["user"]["name"], r"\A[A-Z][a-z]+ [A-Z][a-z]+\Z")
        self.assertRegex(value["product"]["title"], r"\A[a-z ]+\Z")

    def test_descriptions_and_titles_tell_when_names_do_not(self):
        self.assertRegex(made(shape(x1=described("The customer's email")))["x1"], "@example")
        self.assertRegex(made(shape(x1={"type": "string", "title": "Phone"}))["x1"], r"\+1-555")
        self.assertRegex(made(shape(date=described("as DD/MM/YYYY")))["date"], r"\A\d\d/\d\d/20\d\d\Z")
        self.assertRegex(made(shape(date=described("Day, YYYYMMDD")))["date"], r"\A20\d{6}\Z")
        self.assertRegex(made(shape(country=described("ISO 3166 code")))["country"], r"\A[A-Z]{2}\Z")

    def test_the_tool_tells_what_a_vague_property_is(self):
        for about, pattern in (("send_email Sends an email", "@example"), ("send_sms", r"\+1-555"), ("", r"\A[a-z ]+\Z")):
            with self.subTest(about=about):
                self.assertRegex(made(shape(to=S), about=about)["to"], pattern)


class AgreementTest(unittest.TestCase):

    def test_mail_and_user_names_are_their_owners(self):
        for seed in SEEDS:
            value = made(shape(name=S, email={"type": "string", "format": "email"}, username=S, sender=S, sender_email=S), seed=seed)
            for owner, mail in (("name", "email"), ("sender", "sender_email")):
                self.assertEqual(value[mail].split("@")[0], value[owner].lower().replace(" ", "."))
            self.assertEqual(re.split("[._]", value["username"]), value["name"].lower().split())
            value = made(shape(first_name=S, last_name=S, email=S), seed=seed)
            self.assertEqual(value["email"].split("@")[0], (value["first_name"] + "." + value["last_name"]).lower())

    def test_a_place_is_one_place(self):
        zones = {"Oslo": ("Norway", "NOK", "Europe/Oslo", 59.9139), "Kyoto": ("Japan", "JPY", "Asia/Tokyo", 35.0116)}
        met = set()
        for seed in range(60):
            value = made(shape(city=S, country=S, currency=S, timezone=S, latitude=NUMBER), seed=seed)
            if value["city"] in zones:
                met.add(value["city"])
                self.assertEqual(tuple(value.values())[1:], zones[value["city"]])
        self.assertEqual(met, set(zones))
        value = made(shape(city=S, country=S), "in Lisbon")
        self.assertEqual(value, {"city": "Lisbon", "country": "Portugal"})

    def test_ends_come_after_starts_whichever_comes_first(self):
        for seed in SEEDS:
            for names in (("start_date", "end_date"), ("end_date", "start_date"), ("checkin", "checkout")):
                value = made(shape(**{name: S for name in names}), seed=seed)
                first, second = sorted(names, key=lambda name: name not in ("start_date", "checkin"))
                self.assertLess(value[first], value[second])
            value = made(shape(created_at={"type": "string", "format": "date-time"}, updated_at={"type": "string", "format": "date-time"},
                               start_time=S, end_time=S, min_price=NUMBER, max_price=NUMBER), seed=seed)
            self.assertLess(value["created_at"], value["updated_at"])
            self.assertLess(value["start_time"], value["end_time"])
            self.assertLessEqual(value["min_price"], value["max_price"])

    def test_a_total_is_the_price_of_all(self):
        for seed in SEEDS:
            value = made(shape(unit_price=NUMBER, quantity=INTEGER, total=NUMBER), seed=seed)
            self.assertAlmostEqual(value["total"], value["unit_price"] * value["quantity"], 2)

    def test_items_of_a_list_are_each_their_own(self):
        schema = {"type": "array", "items": shape(name=S, email=S), "minItems": 12}
        self.assertGreater(len({each["name"] for each in made(schema)}), 6)
        names = made(shape(authors={"type": "array", "items": S, "minItems": 12}))["authors"]
        self.assertGreater(len(set(names)), 6)


class SaidTest(unittest.TestCase):

    CASES = (
        ("What's the weather in oslo tomorrow?", "get_weather", shape(location=S), {"location": "Oslo"}),
        ("Fly Anna Schmidt from Paris to New York on March 5, 2027, 2 adults, under $500", "book_flight",
         shape(passenger=S, destination=S, origin=S, departure_date=S, adults=INTEGER, max_price=NUMBER),
         {"passenger": "Anna Schmidt", "destination": "New York", "origin": "Paris", "departure_date": "2027-03-05", "adults": 2,
          "max_price": 500}),
        ("A hotel in Kyoto from 2026-05-01 to 2026-05-04 for 3 guests", "",
         shape(city=S, checkin={"type": "string", "format": "date"}, checkout={"type": "string", "format": "date"}, guests=INTEGER),
         {"city": "Kyoto", "checkin": "2026-05-01", "checkout": "2026-05-04", "guests": 3}),
        ("Send an email to bob@corp.io with subject 'Lunch' saying \"See you at noon\"", "send_email", shape(to=S, subject=S, body=S),
         {"to": "bob@corp.io", "subject": "Lunch", "body": "See you at noon"}),
        ("Convert 1,250.50 USD to EUR", "", shape(amount=NUMBER, from_currency=S, to_currency=S),
         {"amount": 1250.5, "from_currency": "USD", "to_currency": "EUR"}),
        ("Translate 'good morning' to French", "", shape(text=S, target_language=S), {"text": "good morning", "target_language": "French"}),
        ("Translate it to French", "", shape(language=described("ISO 639 code")), {"language": "fr"}),
        ("What is 12 * (3 + 4)?", "", shape(expression=S), {"expression": "12 * (3 + 4)"}),
        ("add 3 and five", "", shape(a=NUMBER, b=NUMBER), {"a": 3, "b": 5}),
        ("Set a timer for 10 minutes", "", shape(duration_minutes=INTEGER), {"duration_minutes": 10}),
        ("Wake me at 2:30pm on 24 December 2026", "", shape(time=S, at={"type": "string", "format": "date-time"}),
         {"time": "14:30", "at": "2026-12-24T14:30:00Z"}),
        ("Search the web for the best hiking boots", "", shape(query=S), {"query": "the best hiking boots"}),
        ("Read https://news.site.org/a?x=1&y=2 please.", "", shape(url={"type": "string", "format": "uri"}),
         {"url": "https://news.site.org/a?x=1&y=2"}),
        ("A ticket with high priority, in progress", "", shape(status={"enum": ["open", "in_progress"]},
                                                               priority={"enum": ["low", "medium", "high"]}),
         {"status": "in_progress", "priority": "high"}),
        ("to fahrenheit, from celsius", "", shape(from_unit={"enum": ["celsius", "fahrenheit"]}, to_unit={"enum": ["celsius", "fahrenheit"]}),
         {"from_unit": "celsius", "to_unit": "fahrenheit"}),
        ("Read notes/todo.md", "", shape(path=S), {"path": "notes/todo.md"}),
        ("Where is order A-1234? Call +47 22 33 44 55", "", shape(order_id=S, phone=S),
         {"order_id": "A-1234", "phone": "+47 22 33 44 55"}),
        ("stock price of AAPL", "", shape(ticker=S), {"ticker": "AAPL"}),
        ("Give it 4 stars, ping 192.0.2.7", "", shape(rating=INTEGER, ip=S), {"rating": 4, "ip": "192.0.2.7"}),
        ("page 3, limit 50", "", shape(page=INTEGER, limit=INTEGER), {"page": 3, "limit": 50}),
    )

    def test_what_the_message_mentions_is_taken(self):
        for hint, about, schema, expected in self.CASES:
            for seed in range(4):
                with self.subTest(hint=hint, seed=seed):
                    self.assertEqual(made(schema, hint, seed, about), expected)

    def test_it_never_breaks_the_schemas_own_demands(self):
        hint = "Book Oslo for bob@corp.io on 2026-05-01 at 2:30pm, 300 guests, \"a quoted text\", order A-1234, 5.5 stars"
        schema = shape(city={"type": "string", "maxLength": 3}, email={"type": "string", "format": "email", "maxLength": 9},
                       date={"type": "string", "format": "date", "pattern": "^2025"}, guests={"type": "integer", "maximum": 12},
                       order_id={"type": "string", "pattern": r"^\d{3}$"}, title={"enum": ["a", "b"]},
                       stars={"type": "number", "multipleOf": 2}, name={"const": "x"})
        for seed in SEEDS:
            try:
                value = made(schema, hint, seed)
            except Exception as problem:
                self.fail("%r" % problem)
            self.assertTrue(satisfies(value, schema), value)

    def test_commands_are_never_taken_from_the_message(self):
        hint = "run \"rm -rf x\", the command 'shutdown', code `reboot` and sql 'DROP TABLE a'"
        value = made(shape(command=S, code=S, shell_cmd=S, sql=S), hint)
        self.assertEqual((value["command"], value["code"], value["shell_cmd"]), ("echo hello",) * 3)
        self.assertRegex(value["sql"], r"\ASELECT ")

    def test_shell_syntax_and_paths_outside_are_not_taken(self):
        hint = "Use \"$(reboot)\" and '; rm x' on ../../etc/secret.txt and /etc/passwd.txt in `Rome`"
        value = made(shape(title=S, text=S, path=S, file=S, query=S, message=S), hint)
        for said in value.values():
            self.assertNotRegex(said, r"[$`;|&<>\\]|etc")

    def test_hostile_messages_take_linear_time(self):
        schema = shape(**{name: S for name in ("email", "phone", "path", "expression", "query", "city", "date", "title", "id", "text")},
                       n=INTEGER)
        for text in ("1 " * 5000, "a@" * 5000, "+1" * 5000, "((((" * 3000, "'" * 9000, "a/" * 5000, "1-" * 5000, "A" * 9000,
                     "search for " * 900, "\u0301" * 5000, "from to " * 1000, "1,111" * 2000, "say say " * 1000):
            made(schema, text)          # the bound is the test's own: one that took minutes would not end

    def test_dates_that_are_none_are_not_taken(self):
        for text in ("2026-13-01", "February 30, 2026", "2025-02-29"):
            self.assertEqual(SaidValues(text).dates(), [], text)
        self.assertEqual(SaidValues("on the 3rd of May, then 2026-06-07").dates(), ["2026-05-03", "2026-06-07"])
        for date in SaidValues("May 1, 2 June 2027, 2026-06-07").dates():
            self.assertTrue(format_holds("date", date))

    def test_numbers_in_dates_times_and_codes_are_none(self):
        self.assertEqual([number.value for number in SaidValues("on 2026-05-04 at 14:30, v1.2.3, #77, x-9, a 3 and 4.5").numbers()],
                         [3, 4.5])

    def test_the_same_message_gives_the_same_value(self):
        for hint, about, schema, _ in self.CASES:
            self.assertEqual(len({json.dumps(made(schema, hint, 3, about)) for _ in range(3)}), 1)


if __name__ == "__main__":
    unittest.main()
