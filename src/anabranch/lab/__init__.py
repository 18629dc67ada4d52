"""Generated problems with exact checkers, their tokenizer, and the recipe of the bundled model.

Importing this package loads no torch; training lives in `anabranch.training`.
"""
