"""What can be told of an object of the user from outside: contents, changes, code, length."""
