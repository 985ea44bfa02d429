"""A hundred Pydantic models of real shape, for check_schema_values.py. Needs pydantic."""
import datetime as dt
import uuid
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Dict, Generic, List, Literal, Optional, Set, Tuple, TypeVar, Union

from pydantic import (AnyUrl, AwareDatetime, Base64Bytes, BaseModel, ByteSize, ConfigDict, EmailStr, Field, FutureDate, HttpUrl,
                      IPvAnyAddress, Json, NonNegativeInt, PositiveFloat, PositiveInt, RootModel, SecretStr, UUID4,
                      conint, conlist, constr, create_model)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Color(str, Enum):
    red = "red"
    green = "green"
    blue = "blue"


class Level(IntEnum):
    low = 1
    mid = 2
    high = 3


class Unit(str, Enum):
    celsius = "celsius"
    fahrenheit = "fahrenheit"


class WeatherArgs(Strict):
    """Get the current weather."""
    location: str = Field(description="The city and state, e.g. San Francisco, CA")
    unit: Unit = Unit.celsius


class Forecast(BaseModel):
    city: str
    days: conint(ge=1, le=14) = 3
    hourly: bool = False


class Address(BaseModel):
    street: str
    city: str
    zip_code: str = Field(pattern=r"^\d{5}(-\d{4})?$")
    country: str = Field(min_length=2, max_length=2, pattern="^[A-Z]{2}$")


class Contact(BaseModel):
    name: str
    email: EmailStr
    phone: Optional[str] = Field(None, pattern=r"^\+?[1-9]\d{7,14}$")


class Person(BaseModel):
    name: str
    age: int = Field(ge=0, le=150)
    address: Address
    contacts: List[Contact] = []


class Company(BaseModel):
    name: str
    founded: dt.date
    employees: List[Person] = Field(max_length=3)
    offices: Dict[str, Address]
    website: Optional[HttpUrl] = None


class Money(Strict):
    amount: Decimal = Field(gt=0, max_digits=8, decimal_places=2)
    currency: constr(pattern=r"^[A-Z]{3}$")


class LineItem(Strict):
    sku: constr(pattern=r"^[A-Z]{2}-\d{4}$")
    quantity: PositiveInt
    unit_price: Money


class Invoice(Strict):
    id: uuid.UUID
    issued: dt.datetime
    due: dt.date
    items: conlist(LineItem, min_length=1, max_length=20)
    notes: Optional[str] = Field(None, max_length=200)
    paid: bool


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    breed: str
    good: Literal[True] = True


class Bird(BaseModel):
    kind: Literal["bird"]
    wingspan_cm: float = Field(gt=0, lt=400)


class Owner(BaseModel):
    pet: Union[Cat, Dog, Bird] = Field(discriminator="kind")
    others: List[Union[Cat, Dog]] = []


class Node(BaseModel):
    value: int
    children: List["Node"] = []


class Linked(BaseModel):
    value: str
    next: Optional["Linked"] = None


class Tree(Strict):
    left: Optional["Tree"]
    right: Optional["Tree"]
    label: str


class Expr(BaseModel):
    op: Literal["+", "-", "*", "/"]
    left: Union["Expr", float]
    right: Union["Expr", float]


class Filter(BaseModel):
    field: str
    operator: Literal["eq", "ne", "gt", "lt", "in"]
    value: Union[str, int, float, bool, List[str], None]


class AndFilter(BaseModel):
    all: List[Union["AndFilter", "OrFilter", Filter]] = Field(min_length=1)


class OrFilter(BaseModel):
    any: List[Union[AndFilter, "OrFilter", Filter]] = Field(min_length=1)


class SearchArgs(Strict):
    query: str = Field(min_length=1, max_length=256, description="What to search for")
    limit: int = Field(10, ge=1, le=100)
    filters: List[Filter] = []
    sort: Literal["asc", "desc"] = "asc"


class Step(Strict):
    explanation: str
    output: str


class MathResponse(Strict):
    steps: List[Step]
    final_answer: str


class CalendarEvent(Strict):
    name: str
    date: str
    participants: List[str]


class Entities(Strict):
    attributes: List[str]
    colors: List[Color]
    animals: List[str]


class Sentiment(BaseModel):
    label: Literal["positive", "negative", "neutral"]
    score: float = Field(ge=0, le=1)
    rationale: Optional[str]


class Recipe(BaseModel):
    title: str = Field(examples=["Apple pie"])
    servings: int = Field(4, gt=0, le=12)
    ingredients: List[Tuple[str, float, str]]
    steps: conlist(str, min_length=2)
    tags: Set[str] = set()


class Point(BaseModel):
    lat: float = Field(ge=-90, le=90)
    lon: float = Field(ge=-180, le=180)


class Route(BaseModel):
    points: conlist(Point, min_length=2)
    distance_km: PositiveFloat
    mode: Literal["walk", "bike", "car"]


class Matrix(RootModel[List[List[float]]]):
    pass


class Tags(RootModel[Dict[str, str]]):
    pass


class Version(BaseModel):
    version: constr(pattern=r"^\d+\.\d+\.\d+(-[a-z]+)?$")
    released: Optional[dt.date]


class User(BaseModel):
    id: UUID4
    username: constr(min_length=3, max_length=20, pattern=r"^[a-z][a-z0-9_]*$")
    password: SecretStr
    created_at: AwareDatetime
    roles: Set[Literal["admin", "editor", "viewer"]] = Field(min_length=1)


class Server(BaseModel):
    host: IPvAnyAddress
    port: int = Field(ge=1, le=65535)
    tls: bool = True
    timeout: dt.timedelta
    url: AnyUrl


class FileInfo(BaseModel):
    path: str
    size: ByteSize
    content: Base64Bytes
    meta: Dict[str, Any]


class Schedule(BaseModel):
    opens: dt.time
    closes: dt.time
    days: List[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]] = Field(min_length=1, max_length=7)
    holiday: Optional[FutureDate] = None


class Settings(BaseModel):
    model_config = ConfigDict(extra="allow")
    debug: bool = False
    level: Level = Level.mid
    ratio: float = Field(0.5, multiple_of=0.25, ge=0, le=1)
    even: int = Field(multiple_of=2, ge=10, le=20)


class Payload(BaseModel):
    data: Json
    raw: Any = None
    flags: Dict[Color, bool]


T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    items: List[T]
    next_page: Optional[int]
    total: NonNegativeInt


class Nested(BaseModel):
    class Inner(BaseModel):
        class Deep(BaseModel):
            flag: bool
            numbers: Tuple[int, int, int]
        deep: Deep
        maybe: Optional[Deep] = None
    inner: Inner
    table: Dict[str, List[Inner]]


class ToolCall(BaseModel):
    name: Literal["search", "open", "close"]
    arguments: Union[SearchArgs, WeatherArgs, Dict[str, str]]


class Message(BaseModel):
    role: Literal["system", "user", "assistant", "tool"]
    content: Union[str, List[Union["TextPart", "ImagePart"]], None]
    tool_calls: Optional[List[ToolCall]] = None


class TextPart(BaseModel):
    type: Literal["text"] = "text"
    text: str


class ImagePart(BaseModel):
    type: Literal["image_url"] = "image_url"
    image_url: HttpUrl
    detail: Literal["auto", "low", "high"] = "auto"


class Task(BaseModel):
    title: str
    done: bool = False
    priority: Level
    subtasks: List["Task"] = []
    due: Optional[dt.datetime] = None


class Graph(BaseModel):
    nodes: Dict[constr(pattern="^n[0-9]+$"), Point]
    edges: List[Tuple[str, str, Annotated[float, Field(ge=0)]]]


class Flight(Strict):
    flight: constr(pattern=r"^[A-Z]{2}\d{3,4}$")
    origin: constr(pattern="^[A-Z]{3}$")
    destination: constr(pattern="^[A-Z]{3}$")
    departs: dt.datetime
    seats: Dict[Literal["economy", "business", "first"], NonNegativeInt]
    price: Money


class Patient(BaseModel):
    mrn: constr(pattern=r"^MRN\d{6}$")
    birth_date: dt.date
    blood: Optional[Literal["A+", "A-", "B+", "B-", "0+", "0-", "AB+", "AB-"]]
    vitals: List[Tuple[dt.datetime, float]]
    allergies: Set[constr(min_length=2)] = Field(max_length=5)


class Aliased(BaseModel):
    first_name: str = Field(alias="firstName")
    last_name: str = Field(alias="lastName")
    e_mail: EmailStr = Field(alias="emailAddress")


class Card(BaseModel):
    number: constr(pattern=r"^\d{4} \d{4} \d{4} \d{4}$")
    expires: constr(pattern=r"^(0[1-9]|1[0-2])/\d{2}$")
    cvc: constr(pattern=r"^\d{3}$")
    holder: constr(strip_whitespace=True, min_length=2)


class Hex(BaseModel):
    color: constr(pattern=r"^#(?:[0-9a-fA-F]{3}){1,2}$")
    slug: constr(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$", max_length=30)
    mac: constr(pattern=r"^([0-9A-F]{2}:){5}[0-9A-F]{2}$")
    semver: constr(pattern=r"^v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$")


NAMED = [WeatherArgs, Forecast, Address, Contact, Person, Company, Money, LineItem, Invoice, Cat, Dog, Bird, Owner, Node,
         Linked, Tree, Expr, Filter, AndFilter, OrFilter, SearchArgs, Step, MathResponse, CalendarEvent, Entities,
         Sentiment, Recipe, Point, Route, Matrix, Tags, Version, User, Server, FileInfo, Schedule, Settings, Payload,
         Page[Person], Page[Union[int, None]], Page[Node], Nested, ToolCall, Message, TextPart, ImagePart, Task, Graph,
         Flight, Patient, Aliased, Card, Hex]

# What one field of a tool's arguments may look like: each becomes a model of its own, beside a plain field.
FIELDS = {
    "quantity": (int, Field(gt=0, lt=50)), "rating": (float, Field(ge=1, le=5, multiple_of=0.5)),
    "code": (str, Field(pattern=r"^[A-Z]{3}[0-9]{3}$")), "summary": (str, Field(min_length=20, max_length=60)),
    "languages": (List[Literal["en", "de", "fr"]], Field(min_length=1, max_length=3)), "when": (dt.datetime, ...),
    "day": (dt.date, ...), "clock": (dt.time, ...), "duration": (dt.timedelta, ...), "uid": (uuid.UUID, ...),
    "site": (HttpUrl, ...), "mail": (EmailStr, ...), "maybe_int": (Optional[int], None), "flag": (bool, ...),
    "nothing": (None, None), "either": (Union[int, str], ...), "choice": (Literal["a", 1, True, None], ...),
    "pair": (Tuple[int, str], ...), "many": (Tuple[int, ...], ...), "unique": (Set[int], Field(min_length=3)),
    "scores": (Dict[str, float], Field(min_length=2)), "deep": (List[List[List[int]]], ...),
    "table": (Dict[str, Dict[str, List[bool]]], ...), "enum": (Color, ...), "int_enum": (Level, ...),
    "ints": (List[conint(ge=0, le=9)], Field(min_length=5, max_length=5)), "percent": (float, Field(ge=0, le=100)),
    "below": (int, Field(lt=-5)), "narrow": (float, Field(gt=0.1, lt=0.2)), "exact": (Literal["only"], ...),
    "long_text": (str, Field(min_length=500)), "short": (str, Field(max_length=1)), "empty": (str, Field(max_length=0)),
    "password": (str, Field(min_length=12, max_length=64)), "command": (str, ...), "sql_code": (str, ...),
    "ip": (IPvAnyAddress, ...), "size": (ByteSize, ...), "anything": (Any, ...), "blob": (bytes, ...),
    "step": (int, Field(multiple_of=7, ge=100, le=120)), "big": (int, Field(ge=10**12)), "price": (Decimal, ...),
    "frozen": (frozenset, ...), "raw_dict": (dict, ...), "raw_list": (list, ...), "set_of_enum": (Set[Color], ...),
    "nested_union": (Union[List[int], Dict[str, int], None], ...), "tz": (constr(pattern=r"^[A-Z][a-z]+/[A-Z][a-z]+$"), ...),
    "examples": (str, Field(examples=["first", "second"])), "default_list": (List[str], ["x"]),
}


def models():
    """{name: model}, a hundred and more."""
    found = {model.__name__: model for model in NAMED}
    for name, field in FIELDS.items():
        found["With_" + name] = create_model("With_" + name, **{name: field, "label": (str, ...)})
    return found
