"""Mathematical problems: grade school and competitions, by reasoning alone or with a Python tool."""
