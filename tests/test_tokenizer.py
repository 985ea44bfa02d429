"""Tests of the approximate tokenizer: what callers rely on, its error against o200k_base, and that it stays linear."""

import os
import random
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tokenizer import ApproxTokenizer, Tokenizer  # noqa: E402

# Texts written for this table, each with its exact number of o200k_base tokens (tiktoken 0.14, no special tokens).
COUNTED = {
    "english": [
        (44,
         "The harbour wakes before the town does. By half past four the first lamps are moving along the quay, a"
         "nd the gulls, who never seem to sleep at all, have already begun their argument over yesterday's nets."),
        (49,
         "I think the simplest way to explain it is this: a cache remembers the answer so that you don't have to"
         " ask the question twice. When the answer changes, somebody has to tell the cache, and that is where mo"
         "st of the trouble starts."),
        (45,
         "Dear Margaret, thank you for your letter of the 12th. I'm sorry that it has taken me so long to reply;"
         " we've had builders in the house since January, and nothing has been where it ought to be."),
        (43,
         "Researchers at the university measured sleep quality in 1,240 adults over eighteen months. Participant"
         "s who walked for at least thirty minutes a day fell asleep faster, although the difference disappeared"
         " once caffeine intake was taken into account."),
        (50,
         "To make the soup, soften two onions in butter, add the chopped carrots and a pinch of salt, and cook g"
         "ently for ten minutes. Pour in the stock, bring it to the boil, then simmer until everything is tender"
         ". Serve with bread."),
        (43,
         "Unlike traditional insurance, a mutual society is owned by its members. Any surplus at the end of the "
         "year is either returned to policyholders or kept in reserve, which makes premiums less volatile during"
         " periods of heavy claims."),
        (48,
         "\"You can't be serious,\" said Thomas, putting down his cup. \"There isn't a train until Monday, and s"
         "he's expecting us tonight.\" Nobody answered him. Outside, the rain went on falling as though it had b"
         "een paid by the hour."),
        (65,
         "Sure! Here are three things to check first:\n\n1. Make sure that the server is running and listening o"
         "n the right port.\n2. Confirm that your API key is valid and hasn't expired.\n3. Look at the logs for "
         "any timeout or connection errors.\n\nLet me know what you find and I'll help you from there."),
        (46,
         "In the autumn of 1931 the expedition reached the southern edge of the plateau, where an abandoned mona"
         "stery offered the only shelter for sixty miles. Its library, remarkably, had survived; the monks had s"
         "ealed the doors with wax."),
        (33,
         "The committee recommends that the proposal be accepted subject to two conditions: the budget must be r"
         "eviewed quarterly, and an independent auditor should be appointed before any equipment is purchased."),
    ],
    "code": [
        (109,
         "import json\nimport threading\n\n\nclass Counter:\n    \"\"\"A counter that several threads may share."
         "\"\"\"\n\n    def __init__(self, start=0):\n        self._lock = threading.Lock()\n        self._value"
         " = start\n\n    def increment(self, amount=1):\n        with self._lock:\n            self._value += a"
         "mount\n            return self._value\n\n\nif __name__ == \"__main__\":\n    counter = Counter()\n    "
         "for _ in range(10):\n        counter.increment()\n    print(json.dumps({\"value\": counter._value}))\n"),
        (93,
         "export async function fetchUsers(baseUrl, { limit = 20, signal } = {}) {\n  const response = await fet"
         "ch(`${baseUrl}/users?limit=${limit}`, { signal });\n  if (!response.ok) {\n    throw new Error(`Reques"
         "t failed with status ${response.status}`);\n  }\n  const users = await response.json();\n  return user"
         "s.filter((user) => user.isActive).map(({ id, name }) => ({ id, name }));\n}\n"),
        (148,
         "#include <stdio.h>\n#include <stdlib.h>\n\nstatic int compare_ints(const void *a, const void *b)\n{\n"
         "\tconst int x = *(const int *)a;\n\tconst int y = *(const int *)b;\n\n\treturn (x > y) - (x < y);\n}\n"
         "\nint main(int argc, char **argv)\n{\n\tsize_t count = argc - 1;\n\tint *values = malloc(count * sizeo"
         "f(*values));\n\n\tif (values == NULL)\n\t\treturn EXIT_FAILURE;\n\tfor (size_t i = 0; i < count; i++)"
         "\n\t\tvalues[i] = atoi(argv[i + 1]);\n\tqsort(values, count, sizeof(int), compare_ints);\n\tfree(value"
         "s);\n\treturn 0;\n}\n"),
        (98,
         "SELECT c.customer_id, c.name, COUNT(o.id) AS order_count, SUM(o.total_cents) / 100.0 AS revenue\nFROM "
         "customers AS c\nLEFT JOIN orders AS o ON o.customer_id = c.customer_id\nWHERE o.created_at >= '2024-01"
         "-01' AND o.status <> 'cancelled'\nGROUP BY c.customer_id, c.name\nHAVING COUNT(o.id) > 3\nORDER BY rev"
         "enue DESC\nLIMIT 50;\n"),
        (94,
         "#!/bin/bash\nset -euo pipefail\n\nROOT=\"$(cd \"$(dirname \"$0\")/..\" && pwd)\"\nBUILD_DIR=\"${BUILD_"
         "DIR:-$ROOT/build}\"\n\nmkdir -p \"$BUILD_DIR\"\nfor file in \"$ROOT\"/src/*.c; do\n    name=$(basename"
         " \"$file\" .c)\n    echo \"compiling $name\"\n    gcc -Wall -O2 -c \"$file\" -o \"$BUILD_DIR/$name.o\""
         "\ndone\n"),
        (95,
         "func (s *Server) handleHealth(w http.ResponseWriter, r *http.Request) {\n\tctx, cancel := context.With"
         "Timeout(r.Context(), 2*time.Second)\n\tdefer cancel()\n\n\tif err := s.db.PingContext(ctx); err != nil"
         " {\n\t\thttp.Error(w, \"database unavailable\", http.StatusServiceUnavailable)\n\t\treturn\n\t}\n\tw.H"
         "eader().Set(\"Content-Type\", \"application/json\")\n\tfmt.Fprintln(w, `{\"status\":\"ok\"}`)\n}\n"),
        (69,
         "pub fn parse_header(line: &str) -> Option<(String, String)> {\n    let (name, value) = line.split_once"
         "(':')?;\n    if name.is_empty() || name.contains(char::is_whitespace) {\n        return None;\n    }\n"
         "    Some((name.to_ascii_lowercase(), value.trim().to_owned()))\n}\n"),
        (110,
         "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n  <meta charset=\"utf-8\">\n  <title>Inspector</title>\n "
         " <style>\n    body { font-family: sans-serif; margin: 2rem; }\n    .row:hover { background-color: #f5f"
         "5f5; }\n  </style>\n</head>\n<body>\n  <div id=\"app\" class=\"row\"><p>Loading...</p></div>\n  <scrip"
         "t src=\"/static/main.js\"></script>\n</body>\n</html>\n"),
    ],
    "json": [
        (86,
         "{\"id\":\"chatcmpl-abc123\",\"object\":\"chat.completion\",\"created\":1714000000,\"model\":\"gpt-4o-m"
         "ini\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hello! How can I hel"
         "p you today?\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":9,\"comple"
         "tion_tokens\":12,\"total_tokens\":21}}"),
        (138,
         "{\n  \"name\": \"example-package\",\n  \"version\": \"2.4.1\",\n  \"description\": \"A small helper fo"
         "r reading settings\",\n  \"main\": \"lib/index.js\",\n  \"scripts\": {\n    \"build\": \"tsc -p tsconf"
         "ig.json\",\n    \"test\": \"node --test\",\n    \"lint\": \"eslint . --ext .js,.ts\"\n  },\n  \"depend"
         "encies\": {\n    \"chalk\": \"^5.3.0\",\n    \"yargs\": \"^17.7.2\"\n  },\n  \"engines\": {\n    \"nod"
         "e\": \">=18\"\n  },\n  \"license\": \"MIT\"\n}\n"),
        (97,
         "{\"type\": \"function\", \"function\": {\"name\": \"get_current_weather\", \"description\": \"Get the "
         "current weather in a given location\", \"parameters\": {\"type\": \"object\", \"properties\": {\"locat"
         "ion\": {\"type\": \"string\", \"description\": \"The city and state, e.g. San Francisco, CA\"}, \"unit"
         "\": {\"type\": \"string\", \"enum\": [\"celsius\", \"fahrenheit\"]}}, \"required\": [\"location\"]}}}"),
        (74,
         "[{\"lat\":52.520008,\"lon\":13.404954,\"city\":\"Berlin\",\"population\":3677472},{\"lat\":48.856613,"
         "\"lon\":2.352222,\"city\":\"Paris\",\"population\":2102650},{\"lat\":41.902782,\"lon\":12.496366,\"cit"
         "y\":\"Rome\",\"population\":2748109}]"),
        (122,
         "{\n    \"users\": [\n        {\n            \"id\": 1,\n            \"email\": \"anna.schmidt@example."
         "com\",\n            \"roles\": [\"admin\", \"editor\"],\n            \"lastLogin\": \"2024-03-18T09:42"
         ":11Z\",\n            \"active\": true\n        },\n        {\n            \"id\": 2,\n            \"em"
         "ail\": \"p.jones@example.org\",\n            \"roles\": [],\n            \"lastLogin\": null,\n       "
         "     \"active\": false\n        }\n    ],\n    \"page\": 1,\n    \"pageSize\": 50\n}\n"),
        (83,
         "{\"timestamp\":\"2024-05-01T12:00:00.123Z\",\"level\":\"error\",\"service\":\"billing\",\"traceId\":\""
         "4bf92f3577b34da6a3ce929d0e0e4736\",\"message\":\"payment declined\",\"context\":{\"orderId\":\"A-10293"
         "\",\"amountCents\":4599,\"currency\":\"EUR\",\"retryable\":false}}"),
    ],
    "german": [
        (45,
         "Der Hafen erwacht vor der Stadt. Um halb fünf bewegen sich die ersten Lampen am Kai entlang, und die M"
         "öwen, die offenbar niemals schlafen, streiten schon um die Reste in den Netzen von gestern."),
        (52,
         "Sehr geehrte Frau Müller, vielen Dank für Ihre Anfrage vom 12. März. Gerne senden wir Ihnen ein unverb"
         "indliches Angebot für die Renovierung Ihrer Wohnung zu. Bitte teilen Sie uns mit, wann ein Besichtigun"
         "gstermin für Sie möglich wäre."),
        (51,
         "Die Bundesregierung hat am Mittwoch einen Gesetzentwurf beschlossen, der den Ausbau erneuerbarer Energ"
         "ien beschleunigen soll. Kritiker bemängeln, dass die Genehmigungsverfahren weiterhin zu lange dauern u"
         "nd die Kommunen zu wenig Personal haben."),
        (42,
         "Ich habe dir doch gesagt, dass wir am Wochenende keine Zeit haben! Meine Schwester kommt mit den Kinde"
         "rn zu Besuch, und am Sonntag wollen wir alle zusammen in den Zoo gehen, wenn das Wetter mitspielt."),
        (55,
         "Für den Teig das Mehl in eine Schüssel sieben, die weiche Butter, den Zucker und eine Prise Salz dazug"
         "eben und alles rasch verkneten. Anschließend in Frischhaltefolie wickeln und mindestens eine Stunde im"
         " Kühlschrank ruhen lassen."),
        (55,
         "Ein Betriebssystem verwaltet die Betriebsmittel eines Rechners, etwa Arbeitsspeicher, Festplatten sowi"
         "e Ein- und Ausgabegeräte, und stellt diese Anwendungsprogrammen zur Verfügung. Es bildet dadurch die S"
         "chnittstelle zwischen der Hardware und der Anwendungssoftware."),
        (50,
         "Natürlich! Um das Problem zu lösen, kannst du folgendes versuchen: Starte zuerst den Server neu und pr"
         "üfe, ob der richtige Anschluss verwendet wird. Wenn der Fehler weiterhin auftritt, schau bitte in die "
         "Protokolldatei."),
        (45,
         "Es war einmal ein alter Fischer, der lebte mit seiner Frau in einer kleinen Hütte am Meer. Jeden Morge"
         "n ging er hinaus und warf sein Netz aus, und jeden Abend kehrte er mit leeren Händen zurück."),
    ],
    "chinese": [
        (49,
         "港口比城市醒得早。凌晨四点半，第一批灯光沿着码头移动，海鸥似乎从不睡觉，已经开始为昨天渔网里的残渣争吵"
         "起来。"),
        (39,
         "人工智能正在改变我们的生活方式。从智能手机到自动驾驶汽车，机器学习技术已经被广泛应用于各个领域，同时也"
         "带来了关于隐私和就业的新问题。"),
        (32,
         "你好！如果你想解决这个问题，可以先检查服务器是否正在运行，然后确认端口号是否正确。如果错误仍然存在，请"
         "查看日志文件。"),
        (40,
         "昨天晚上我和朋友一起去看了一场电影，故事讲的是一个小镇上的老师如何帮助学生实现梦想。虽然情节比较简单，"
         "但是演员的表演非常感人。"),
        (35,
         "据报道，今年第一季度国内生产总值同比增长百分之五点三，消费市场持续恢复，服务业保持较快增长，就业形势总"
         "体稳定。"),
        (57,
         "做西红柿炒鸡蛋很容易：先把鸡蛋打散，加一点盐，用热油炒熟后盛出；再把西红柿切块下锅，炒出汁水，最后倒入"
         "鸡蛋翻炒均匀即可。"),
        (45,
         "从前有一位老渔夫，他和妻子住在海边的一间小屋里。每天早晨他都出海撒网，每天傍晚却总是空手而归。"),
        (42,
         "操作系统是管理计算机硬件与软件资源的系统软件，同时也是计算机系统的核心。它负责内存管理、进程调度、文件"
         "系统和网络通信等基本事务。"),
    ],
    "emoji": [
        (18,
         "Good morning everyone! ☀\ufe0f Coffee first ☕ and then we ship it 🚀"),
        (16,
         "haha that's so funny 😂😂 I can't even 🤣 see you tonight? ❤\ufe0f"),
        (27,
         "✅ Tests pass\n✅ Docs updated\n❌ Release notes missing\n⚠\ufe0f Two warnings left\n🔥 Hot path still sl"
         "ow\n"),
        (23,
         "Happy birthday!! 🎉🎂 Hope you have an amazing day 🥳 we love you so much 💕"),
        (18,
         "👍 👎 🙏 😂 🔥 🎉 😍 🤔 👀 💯"),
        (22,
         "just landed ✈\ufe0f the weather is perfect 🌞 beach later? 🏖\ufe0f bring snacks 🍕"),
        (24,
         "I'm so tired today 😴 my cat woke me up at five 🐱 and then the coffee machine broke 😭"),
        (38,
         "🚀 New release: version 2.0 is out! 🎉 Faster builds ⚡, better errors 🐛 and a dark theme 🌙. Thanks t"
         "o all contributors 🙏"),
    ],
}

# The most that the mean absolute error of a kind may be.
ERROR_BOUND = 0.08

# Harmless and hostile pieces for random texts: each kind of character that the pattern tells apart.
PIECES = (
    " the old harbour", "The", " However,", "don't", " it's", " incomprehensibly", "camelCaseName", "HTTPServer",
    " LICENSE", "snake_case_name", "__init__", "3.14159", "20240101", "    ", "  ", " ", "\t\t", "\n", "\r\n",
    "\n\n\n", ".", ", ", "...", "!?", '{"a":{"b":["c"]}}', "://", "-" * 100, "=" * 7, "_" * 50, "#" * 81,
    " für", " Größe", "naïve", "příliš", " Việt", "привет мир",
    " Ελλάδα", "مرحبا بالعالم", "שלום", "नमस्ते", "สวัสดี", "한국어 텍스트", "日本語のテキスト", "我们可以使用", "，但是", "。", "學習",
    "\U0001f602", "\u2764\ufe0f", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "e\u0301\u0302", "\ud800", "\udfff", "\x00", "\x1c", "\u00a0",
    "\u2028", "\u3000", "１２３", "½", "²", "\ufeff", "\U00020000",
)


def random_text(random_source, pieces):
    """Return a text of so many pieces, some of them repeated and some any code point at all."""
    chosen = []
    for _ in range(pieces):
        kind = random_source.random()
        if kind < 0.1:
            chosen.append(chr(random_source.randrange(0x110000)))
        elif kind < 0.15:
            chosen.append(random_source.choice(PIECES) * random_source.randrange(2, 90))
        else:
            chosen.append(random_source.choice(PIECES))
    return "".join(chosen)


class SplitTest(unittest.TestCase):
    """What callers rely on."""

    def setUp(self):
        self.tokenizer = ApproxTokenizer()

    def check_pieces(self, pieces):
        self.assertEqual(self.tokenizer.split("".join(pieces)), pieces)

    def test_is_a_tokenizer_with_a_name(self):
        self.assertIsInstance(self.tokenizer, Tokenizer)
        self.assertEqual(self.tokenizer.name, "approx")

    def test_empty_text_has_no_tokens(self):
        self.assertEqual(self.tokenizer.split(""), [])
        self.assertEqual(self.tokenizer.count(""), 0)
        self.assertEqual(self.tokenizer.count_slowly("", self.fail), 0)

    def test_common_words_and_their_marks_are_one_token_each(self):
        self.check_pieces(["The", " old", " harbour", " keeps", " a", " quiet", " record", ",", " and", " so",
                           " on", ".", " The", " evening", " light", ",", " however", ",", " lingers", "."])

    def test_every_lowercase_word_of_up_to_eight_letters_is_one_token(self):
        random_source = random.Random(8)
        for _ in range(2000):
            letters = random_source.randint(1, 8)
            word = "".join(random_source.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(letters))
            self.check_pieces(["The", " " + word, " " + word, ",", " " + word, "."])

    def test_capitalised_word_at_the_start_is_one_token(self):
        for word in ("A", "I", "The", "Every", "Nobody", "Morning", "Together"):
            self.check_pieces([word, " sea", "."])
            self.check_pieces([word, ",", " " + word[:5], " sea", "."])

    def test_newlines_after_a_mark_belong_to_its_token(self):
        self.check_pieces(["The", " sea", ".\n\n", "The", " sky", ",\n", "and", " so", " on", ".\n"])

    def test_newlines_after_a_word_are_a_token(self):
        self.check_pieces(["The", " sea", "\n\n", "The", " sky", "\n"])

    def test_contractions_stay_with_their_word(self):
        self.check_pieces(["I", " don't", " think", " it's", " what", " they'll", " do", "."])

    def test_digits_come_in_threes_without_the_space(self):
        self.check_pieces(["In", " ", "202", "4", " and", " ", "123", "456", "7", "."])

    def test_indentation_leaves_one_space_to_the_word(self):
        self.check_pieces(["if", " x", ":\n", "       ", " return", " y", "\n"])

    def test_names_fall_apart_at_their_humps(self):
        self.check_pieces(["get", "User", "Name"])
        self.check_pieces(["get", "_user", "_name"])

    def test_json_marks_run_together(self):
        self.check_pieces(['{"', "name", '":"', "value", '"}'])

    def test_an_emoji_stands_behind_the_empty_pieces_of_its_other_tokens(self):
        self.check_pieces([" so", " \U0001f602", "\U0001f602", "."])
        self.check_pieces([" so", "", " \U0001f389", "", "\U0001f389", "."])
        self.check_pieces(["", "", "\U0001f9a9", " and", "", "", " \U0001f9a9"])

    def test_sequences_count_each_of_their_code_points(self):
        for text, count in (("\U0001f468\u200d\U0001f469\u200d\U0001f467", 8), ("\U0001f1e9\U0001f1ea", 4),
                            ("\U0001f44d\U0001f3fd", 3), ("\u2764\ufe0f", 1), ("\u2600\ufe0f", 3), ("\u9f98", 2)):
            with self.subTest(text=text):
                self.assertEqual(self.tokenizer.count(text), count)     # as o200k_base has them

    def test_ids_of_emoji_come_back_as_they_were(self):
        text = "so \U0001f389\U0001f9a9!"
        ids = self.tokenizer.encode(text)
        self.assertEqual(len(ids), self.tokenizer.count(text))
        self.assertEqual(self.tokenizer.decode(ids), text)

    def test_a_german_text_is_cut_shorter_than_an_english_one(self):
        words = " geflogen verloren"
        german = self.tokenizer.count("Für den Hafen und die Stadt ist es nicht so." + words)
        rest = self.tokenizer.count("Für den Hafen und die Stadt ist es nicht so.")
        self.assertEqual((german - rest, self.tokenizer.count(words)), (4, 2))

    def test_random_texts_join_to_themselves(self):
        random_source = random.Random(1)
        for _ in range(400):
            text = random_text(random_source, random_source.randrange(1, 60))
            pieces = self.tokenizer.split(text)
            self.assertEqual("".join(pieces), text)
            self.assertTrue(not pieces or pieces[-1], "the last piece completes a character")
            self.assertEqual(self.tokenizer.count(text), len(pieces))
            self.assertEqual(pieces, ApproxTokenizer().split(text))

    def test_every_code_point_joins_to_itself(self):
        text = " ".join(map(chr, range(0x110000)))
        self.assertEqual("".join(self.tokenizer.split(text)), text)

    def test_ascii_text_splits_alike_beside_other_text(self):
        random_source = random.Random(2)
        pieces = [piece for piece in PIECES if piece.isascii()]
        for _ in range(400):
            text = "".join(random_source.choice(pieces) for _ in range(50))
            alone = self.tokenizer.split(text)
            self.assertEqual(self.tokenizer.split(text + "\n\u00e9")[:len(alone) - 3], alone[:-3])


class AccuracyTest(unittest.TestCase):
    """The count against o200k_base."""

    def test_mean_error_of_each_kind(self):
        tokenizer = ApproxTokenizer()
        for kind, rows in COUNTED.items():
            with self.subTest(kind=kind):
                errors = [abs(tokenizer.count(text) - exact) / exact for exact, text in rows]
                self.assertLessEqual(sum(errors) / len(errors), ERROR_BOUND)
                total = sum(exact for exact, _ in rows)
                guessed = sum(tokenizer.count(text) for _, text in rows)
                self.assertLessEqual(abs(guessed - total) / total, ERROR_BOUND)


class LongTextTest(unittest.TestCase):
    """Texts that are counted in windows."""

    def setUp(self):
        self.tokenizer = ApproxTokenizer()

    def check(self, text):
        breaths = []
        exact = len(self.tokenizer.split(text))
        self.assertEqual(self.tokenizer.count_slowly(text, lambda: breaths.append(1)), exact)
        self.assertEqual(self.tokenizer.count(text), exact)
        self.assertGreaterEqual(len(breaths), len(text) // 65536 - 1)
        self.assertLessEqual(len(breaths), len(text) // 65000 + 1)

    def test_runs_of_one_kind(self):
        for piece in ("a", "A", " ", "\n", "1", ".", "!", "-", "_", "'", "\t", "\u00e4", "\u0159", "\u0301",
                      "\u4e2d", "\u6211\u4eec", "\u3042", "\ud55c", "\u0431", "\U0001f602", "\ud800", " \n", "aB",
                      "a'", "'s", " a", "information", ":\n", "\U0001f9a9", " \U0001f389", "\u9f98",
                      " und f\u00fcr die"):
            with self.subTest(piece=piece):
                self.check(piece * (140000 // len(piece)))

    def test_random_mixed_texts(self):
        random_source = random.Random(3)
        for _ in range(5):
            self.check(random_text(random_source, random_source.randrange(8000, 40000)))

    def test_the_cut_at_every_place_of_a_mixed_text(self):
        random_source = random.Random(4)
        tail = random_text(random_source, 400)
        for shift in range(0, 1200, 7):
            text = "x" * (65536 - shift) + tail
            self.assertEqual(self.tokenizer.count(text), len(self.tokenizer.split(text)))

    def test_short_text_does_not_breathe(self):
        self.assertEqual(self.tokenizer.count_slowly("The sea.", self.fail), 3)

    def test_what_breathe_raises_ends_the_count(self):
        def breathe():
            raise KeyError("enough")
        with self.assertRaises(KeyError):
            self.tokenizer.count_slowly("a" * 200000, breathe)


class HostileTextTest(unittest.TestCase):
    """Linear time, whatever comes: a megabyte of each stays far from the seconds that a quadratic count would take."""

    def test_a_long_text_of_each(self):
        tokenizer = ApproxTokenizer()
        tokenizer.count("\u00e9")
        for piece in ("a", " ", "\u0301", "1", "!", ".", "\U0001f602", "\n", " \n", "\ud800", "'s",
                      "\u9f99", "a\u00e9", " " * 99 + "!", "-" * 79 + "x", " " + "a" * 20):
            with self.subTest(piece=piece):
                text = piece * (400000 // len(piece))
                start = time.perf_counter()
                tokenizer.count(text)
                # Seen: 0.01 to 0.3 s; a slow and busy machine gets ten times that.
                self.assertLess(time.perf_counter() - start, 4)


if __name__ == "__main__":
    unittest.main()
