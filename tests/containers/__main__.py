"""Write the page of containers anew."""

from tests.containers.page import PAGE, page

if __name__ == "__main__":
    PAGE.write_text(page())
