"""What the tests read: schemas, black-box cases and golden delta lists."""
