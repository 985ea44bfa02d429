"""The names of the text modes, as the settings take them; what is said in them is in backends/language_texts.py,
markdown_texts.py and text_file.py."""

TEXT_LANGUAGES = ("german", "french", "spanish", "chinese", "japanese", "korean", "russian", "greek", "arabic", "hindi",
                  "vietnamese", "thai", "emoji")
# What --text takes, beside file:PATH.
TEXT_MODES = ("prose", "echo", "lorem", "markdown", "languages") + TEXT_LANGUAGES
TEXT_FILE_PREFIX = "file:"
