"""What several test files share: toys and runs, written-out rules, pages, a browser."""
