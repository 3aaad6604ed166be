"""Sound files damaged at random, given to every parser: nothing but `IntarsiaError` may come out."""
