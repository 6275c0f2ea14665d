"""Run functions in threads and collect what they raise."""

import threading


def errors_of_threads(*functions):
    """Run the functions at the same time, each in a thread; return the exceptions they raised."""
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors
