"""Tables from the rules of the installed Transformers, for models that have none here."""
