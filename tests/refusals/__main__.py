"""Write the page of refusals anew."""

from tests.refusals.page import PAGE, page

PAGE.write_text(page())
