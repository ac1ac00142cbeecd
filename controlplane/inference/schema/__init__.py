"""Bodies of the API's requests, checked: every mistake is a 400 that names its parameter."""
