"""The words of the text modes: lorem ipsum, a dozen languages, emoji, and Markdown.

In: a mode's name, of backends/texts.py. Out: paragraphs as strings, each of which can stand behind any other, the same on every Python. They
are put together at first use, from phrases that fit in any combination; what is a token is none of this module's.
"""
from hashlib import shake_128

# A sentence is one phrase of each part, in this order. Parts are separated by "|", phrases by "/"; an empty one is left
# out. name: (between the phrases, at the end, parts).
_TEXT_LANGUAGES = {
    "german": (" ", ".", (
        "Der alte Hafen/Die kleine Bäckerei/Das schmale Café/Ein müder Wanderer/Unsere Nachbarin/Der letzte Zug"
        "/Die Straßenbahn/Ein höflicher Fremder|zeigt/beschreibt/vergisst/bewahrt/erklärt/sucht/findet/überrascht"
        "|den Weg zur Küste/die Größe des Gartens/das Geräusch der Glocken/eine Liste kleiner Wünsche"
        "/den süßen Duft von Äpfeln/die Geschichte der Insel/einen Brief aus München/das Freundschaftsversprechen"
        "|an jedem Morgen/ohne große Eile/für eine kurze Weile/mit viel Geduld/kurz vor dem Gewitter/bis zum Abend")),
    "french": (" ", ".", (
        "Le vieux port/La petite librairie/Une lettre oubliée/Le dernier train/Notre voisine/Un étranger poli"
        "/La rivière/L’horloge de la gare|garde/montre/raconte/cherche/retrouve/décrit/oublie/répète"
        "|le chemin de la côte/l’histoire de l’île/la couleur du soir/une liste de petits vœux/le bruit des cloches"
        "/les noms gravés sur le mur/la clé du jardin/un goût de pêche et de café"
        "|chaque matin/sans se presser/pendant un bref instant/avec beaucoup de patience/avant la pluie d’été"
        "/là où naît le fleuve")),
    "spanish": (" ", ".", (
        "El viejo puerto/La pequeña librería/Un viajero cansado/El último tren/Nuestra vecina/La niña del faro"
        "/Un señor amable/El río|guarda/muestra/busca/encuentra/describe/olvida/repite/dibuja"
        "|el camino hacia la montaña/la historia de la isla/el color del otoño/una lista de pequeños sueños"
        "/el sonido de las campanas/los nombres escritos en el muro/la llave del jardín/un recuerdo de la niñez"
        "|cada mañana/sin ninguna prisa/durante un rato/con mucha paciencia/antes de la lluvia/según la tradición")),
    "chinese": ("", "。", (
        "老船长/年轻的老师/安静的河流/最后一班火车/我们的邻居/城里的图书馆/礼貌的陌生人/港口的灯塔"
        "|每天早上/不慌不忙地/在下雨之前/耐心地/到了晚上/有时候"
        "|记录着/寻找/描述/忘记了/守护着/想起了/画出了/收藏着"
        "|海边的小路/岛上的故事/黄昏的颜色/一张愿望清单/钟声的回响/墙上的名字/花园的钥匙/远方的来信"
        "|///，大家都很高兴/，然后慢慢地走回家")),
    "japanese": ("", "。", (
        "古い港は/若い先生は/静かな川は/最後の列車は/隣の人は/町の図書館は/灯台の番人は/疲れた旅人は"
        "|毎朝、/急がずに/雨が降る前に、/しばらくの間、/夜になると/ときどき"
        "|海辺の道を/島の物語を/夕暮れの色を/小さな願いのリストを/鐘の音を/壁に書かれた名前を/庭の鍵を/遠くからの手紙を"
        "|守っている/探している/覚えている/忘れてしまう/描いている/見つける/話してくれる/集めている")),
    "korean": (" ", ".", (
        "오래된 항구는/젊은 선생님은/조용한 강은/마지막 기차는/우리 이웃은/마을 도서관은/등대지기는/지친 여행자는"
        "|매일 아침/서두르지 않고/비가 오기 전에/잠시 동안/밤이 되면/가끔"
        "|바닷가 길을/섬의 이야기를/저녁의 색을/작은 소원의 목록을/종소리를/벽에 적힌 이름을/정원의 열쇠를"
        "/먼 곳에서 온 편지를|지킨다/찾는다/기억한다/잊는다/그린다/들려준다/모은다/보여 준다")),
    "russian": (" ", ".", (
        "Старый порт/Маленький магазин/Усталый путник/Последний поезд/Наша соседка/Тихая река/Вежливый незнакомец"
        "/Ночной сторож|хранит/показывает/ищет/находит/описывает/забывает/повторяет/рисует"
        "|дорогу к берегу/историю острова/цвет вечернего неба/список маленьких желаний/звон колоколов"
        "/имена на стене/ключ от сада/письмо из далёкого города"
        "|каждое утро/без всякой спешки/в течение часа/с большим терпением/перед самым дождём/ещё до рассвета")),
    "greek": (" ", ".", (
        "Το παλιό λιμάνι/Η μικρή βιβλιοθήκη/Ένας κουρασμένος ταξιδιώτης/Το τελευταίο τρένο/Η γειτόνισσά μας"
        "/Ο ήσυχος ποταμός/Ένας ευγενικός ξένος/Το ρολόι του σταθμού"
        "|φυλάει/δείχνει/ψάχνει/βρίσκει/περιγράφει/ξεχνά/επαναλαμβάνει/ζωγραφίζει"
        "|τον δρόμο προς την ακτή/την ιστορία του νησιού/το χρώμα του δειλινού/μια λίστα μικρών ευχών"
        "/τον ήχο της καμπάνας/τα ονόματα στον τοίχο/το κλειδί του κήπου/ένα γράμμα από μακριά"
        "|κάθε πρωί/χωρίς βιασύνη/για λίγη ώρα/με πολλή υπομονή/πριν από τη βροχή/ως το βράδυ")),
    "arabic": (" ", ".", (
        "الميناء القديم/المسافر المتعب/القطار الأخير/جارنا الطيب/النهر الهادئ/حارس المنارة/المعلم الصبور/بائع الكتب"
        "|يحفظ/يصف/يجد/ينسى/يرسم/يذكر/يكرر/يحمل"
        "|طريق الساحل/حكاية الجزيرة/لون المساء/قائمة الأمنيات الصغيرة/صوت الأجراس/الأسماء المكتوبة على الجدار"
        "/مفتاح الحديقة/رسالة من مدينة بعيدة|كُلَّ صَباحٍ/بلا عجلة/لبعض الوقت/بصبر كبير/قبل المطر/حتى الليل")),
    "hindi": (" ", "।", (
        "पुराना बंदरगाह/थका हुआ यात्री/हमारा पड़ोसी/शांत गाँव/बूढ़ा नाविक/छोटा बाज़ार/धैर्यवान शिक्षक/रात का पहरेदार"
        "|हर सुबह/बिना जल्दबाज़ी के/थोड़ी देर तक/बड़े धैर्य से/बारिश से पहले/शाम तक"
        "|किनारे का रास्ता/द्वीप की कहानी/शाम का रंग/छोटी इच्छाओं की सूची/घंटियों की आवाज़/दीवार पर लिखे नाम"
        "/बगीचे की चाबी/दूर के शहर का पत्र|सँभालता है/दिखाता है/खोजता है/याद करता है/भूल जाता है/दोहराता है/बनाता है")),
    "vietnamese": (" ", ".", (
        "Bến cảng cũ/Cô giáo trẻ/Dòng sông yên tĩnh/Chuyến tàu cuối/Người hàng xóm/Thư viện nhỏ/Người gác hải đăng"
        "/Người lữ khách|giữ/tìm/nhớ/quên/vẽ/kể về/ghi lại/tìm thấy"
        "|con đường ven biển/câu chuyện của hòn đảo/màu của buổi chiều/danh sách điều ước nhỏ/tiếng chuông"
        "/những cái tên trên tường/chìa khóa khu vườn/bức thư từ phương xa"
        "|mỗi buổi sáng/không hề vội vã/trong chốc lát/với nhiều kiên nhẫn/trước cơn mưa/cho đến tối")),
    "thai": ("", " ", (             # which has no full stop: sentences end with a space
        "ท่าเรือเก่า/ครูสาว/แม่น้ำอันเงียบสงบ/รถไฟขบวนสุดท้าย/เพื่อนบ้านของเรา/ห้องสมุดเล็กๆ/คนเฝ้าประภาคาร/นักเดินทาง"
        "|เก็บ/ค้นหา/จดจำ/ลืม/วาด/เล่า/พบ/รักษา"
        "|เส้นทางริมทะเล/เรื่องราวของเกาะ/สีของยามเย็น/รายการความปรารถนา/เสียงระฆัง/ชื่อบนกำแพง/กุญแจสวน/จดหมายจากแดนไกล"
        "|ทุกเช้า/อย่างไม่รีบร้อน/ชั่วครู่/ด้วยความอดทน/ก่อนฝนตก/จนถึงค่ำ")),
}

# Sequences that one glyph is made of, as code points: what they join with cannot be seen in a source file.
_TEXT_EMOJI = (
    "1F600 1F602 1F389 26BD 1F994 "                                                 # single code points
    "2764+FE0F 2600+FE0F 1F327+FE0F 31+FE0F+20E3 23+FE0F+20E3 "                     # variation selectors, keycaps
    "1F44D+1F3FD 1F44B+1F3FB 1F64C+1F3FF 1F90F+1F3FC "                              # skin tones
    "1F1F3+1F1F4 1F1EF+1F1F5 1F1E7+1F1F7 1F1F2+1F1FC 1F1EA+1F1FA+1F1E9+1F1EA "      # flags, two of them in a row
    "1F3F4+E0067+E0062+E0073+E0063+E0074+E007F "                                    # Scotland's: tag characters
    "1F468+200D+1F469+200D+1F467+200D+1F466 1F469+1F3FD+200D+1F4BB 1F3F3+FE0F+200D+1F308 1F43B+200D+2744+FE0F "
    "2764+FE0F+200D+1F525 1F9D1+1F3FE+200D+1F91D+200D+1F9D1+1F3FB 1F441+FE0F+200D+1F5E8+FE0F").split()
# Letters with marks that stand as code points of their own, some of which have no composed form.
_TEXT_MARKED = ("cafe\u0301", "n\u0303andu\u0301", "q\u0307\u0323", "e\u0302\u0301t", "\u0438\u0306\u043e\u0433\u0430",
                "\u1112\u1161\u11ab\u1100\u1173\u11af", "z\u0351\u036b\u0343a\u0322\u0308l\u0300\u0323go",
                "\u0915\u093f\u0924\u093e\u092c", "s\u0323\u0307", "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd")
_TEXT_EMOJI_WORDS = ("the ferry crew/our team/a good friend/the whole family/the night shift|sends/shares/counts/likes"
                     "|the news/a small prize/the weather/this photo/the last goal|at dawn/again/with care/for now")

_TEXT_LOREM = """
dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore et dolore magna aliqua enim ad
minim veniam quis nostrud exercitation ullamco laboris nisi aliquip ex ea commodo consequat duis aute irure in
reprehenderit voluptate velit esse cillum eu fugiat nulla pariatur excepteur sint occaecat cupidatat non proident sunt
culpa qui officia deserunt mollit anim id est laborum
"""
_TEXT_LOREM_START = "Lorem ipsum dolor sit amet, consectetur adipiscing elit."
TEXT_LOREM_STARTS = 8               # so many paragraphs begin with it; one of them begins an answer


class TextPicks:
    """Picks that follow from a label alone. label: bytes."""

    def __init__(self, label):
        self._bytes = shake_128(label).digest(1024)
        self._at = 0

    def below(self, count):
        """A number from 0 to count - 1, count being small."""
        self._at += 1
        return self._bytes[self._at % 1024] % count

    def pick(self, choices):
        return choices[self.below(len(choices))]


def _text_phrases(parts):
    return [part.split("/") for part in parts.split("|")]


def _text_sentence(between, stop, phrases, picks):
    return between.join(filter(None, map(picks.pick, phrases))) + stop


def _text_emoji(picks):
    return "".join(chr(int(code, 16)) for code in picks.pick(_TEXT_EMOJI).split("+"))


def _text_emoji_sentence(phrases, picks):
    """ "Our team <flag> shares the news <family> with care cafe's <heart>." """
    words = list(map(picks.pick, phrases))
    words.insert(1, _text_emoji(picks))
    words.insert(3, picks.pick(_TEXT_MARKED))
    words.insert(5, _text_emoji(picks) + (_text_emoji(picks) if picks.below(2) else ""))
    return words[0].capitalize() + " " + " ".join(words[1:]) + "."


def _text_lorem_sentence(words, picks):
    count = 6 + picks.below(8)
    said = [picks.pick(words) for _ in range(count)]
    if count > 9:
        said[count // 2] += ","
    return " ".join(said).capitalize() + "."


def language_paragraphs(name, count):
    """`count` paragraphs of one to three sentences, each with the blank line behind it. name: of TEXT_LANGUAGES."""
    made = []
    between, stop, parts = _TEXT_LANGUAGES.get(name, (" ", ".", _TEXT_EMOJI_WORDS))
    phrases = _text_phrases(parts)
    for number in range(count):
        picks = TextPicks(b"%s %d" % (name.encode("ascii"), number))
        sentences = [_text_emoji_sentence(phrases, picks) if name == "emoji"
                     else _text_sentence(between, stop, phrases, picks) for _ in range(1 + picks.below(3))]
        made.append((between if stop != "." else " ").join(sentences).rstrip() + "\n\n")
    return made


def lorem_paragraphs(count):
    """`count` paragraphs of lorem ipsum; the first TEXT_LOREM_STARTS begin with the words that everybody knows."""
    words, made = _TEXT_LOREM.split(), []
    for number in range(count):
        picks = TextPicks(b"lorem %d" % number)
        sentences = [_text_lorem_sentence(words, picks) for _ in range(2 + picks.below(3))]
        if number < TEXT_LOREM_STARTS:
            sentences[0] = _TEXT_LOREM_START
        made.append(" ".join(sentences) + "\n\n")
    return made
