def knows(operation, call):
    return False
def check(operation, call, result):
    pass
