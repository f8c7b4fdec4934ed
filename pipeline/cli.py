"""placeholder."""
def main() -> None:
    """Nothing yet."""
