"""From facts to a cause: pure functions, one family of suspects a file, and the precedence among them."""
