"""The attentions of other libraries, judged as their users reach them: ``docs/survey-howto.md``.

A file of ``survey/libraries`` describes one library; it is judged in an environment of its own, a
record is kept, and the pages are functions of the records.
"""
