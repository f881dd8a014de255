"""Every figure and page, the verdict on the loss, the live view."""
